"""Kernels that memory limits, one or a few per case, beside eager's and Inductor's: `python -m benchmarks
memory`.
"""
