"""Triton kernels: compiled in worker processes, launched through the driver, or run by Triton's
interpreter.
"""
