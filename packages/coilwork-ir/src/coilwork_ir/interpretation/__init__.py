"""What the reference interpreters of the three IRs share; needs torch (`coilwork-ir[interpreter]`).

Open `scalars.py` first: it evaluates a scalar graph over a whole domain. `domain.py` makes domains,
`reductions.py` defines reductions and scans, `memory.py` holds tensors, `calls.py` calls operators.
"""
