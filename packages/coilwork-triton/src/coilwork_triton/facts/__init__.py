"""What is known of a kernel before a line of it is written."""
