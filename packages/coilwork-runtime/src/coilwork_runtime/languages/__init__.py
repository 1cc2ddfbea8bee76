"""Languages that kernels are written in: who builds and launches them.

Open `protocol.py` first. `cpp.py` and `triton.py` are the runtime's own; `registered.py` makes one of a
compiler and a device that a back end brings.
"""
