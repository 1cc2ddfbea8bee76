"""Small kernels of one kind that do not wait for each other, in one launch."""
