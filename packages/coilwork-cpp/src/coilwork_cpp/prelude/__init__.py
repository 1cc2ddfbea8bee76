"""C++ functions that kernels call."""
