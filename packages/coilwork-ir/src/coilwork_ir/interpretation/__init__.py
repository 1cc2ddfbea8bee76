"""Shared parts of the three reference interpreters; needs torch (`coilwork-ir[interpreter]`).

Open `scalars.py` first: it evaluates a scalar graph over a whole domain. `ops.py` defines every scalar op,
reduction and scan; `memory.py` holds tensors and calls operators.
"""
