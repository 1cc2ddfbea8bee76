"""The native executor: programs as bytes, run by a small extension over torch's C interface and the GPU
driver's.
"""
