"""Coilwork's C++ code generator for CPUs: kernel IR to vectorised, threaded C++ source."""

__version__ = "0.1.0"
