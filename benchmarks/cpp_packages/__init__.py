"""Packages that C++ loads without Python, beside AOTInductor's: seconds to load and call once, microseconds
of a steady call, bytes of the file.

    python -m benchmarks.cpp_packages [--layers 12] [--width 64] [--rows 4]

Each side exports in a process of its own and runs in a C++ program of its own, on one thread. A small width
leaves the host's work to be seen.
"""
