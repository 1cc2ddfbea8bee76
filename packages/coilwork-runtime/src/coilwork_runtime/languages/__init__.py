"""Languages that kernels are written in: who builds and launches them. `protocol.py` says what that takes.

`cpp.py` and `triton.py` are the runtime's own; `registered.py` makes one of a compiler and a device that a
back end brings.
"""
