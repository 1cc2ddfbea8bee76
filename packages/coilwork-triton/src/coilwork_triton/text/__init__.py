"""What Triton source is made of, and how it is written."""
