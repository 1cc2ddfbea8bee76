"""What C++ source is made of, and how it is printed."""
