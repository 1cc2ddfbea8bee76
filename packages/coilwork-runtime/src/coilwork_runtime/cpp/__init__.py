"""C++ kernels: compiler, build, load and launch."""
