"""Write a kernel's statements: values, loads, reductions, scans, sorts, stores, and loops around them.

Open `body.py` first: passes and loops. `values.py` writes a line per value, `loads.py` addresses and loads,
`actions.py` stores and checks; `reductions.py` and `scans.py` have a row per kind. `contraction.py` is the
body of a matrix product.
"""
