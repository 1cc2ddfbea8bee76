"""Kernels as plain data, read from bytes that the compiler writes. Begin with `kernel_manifest.py`.

Nothing here needs torch or any other package. `coilwork_ir.kernel_source` writes the bytes; the native
executor reads the same ones in C++ (`executor/native/program/manifest.hpp`).
"""
