"""Write a kernel's statements: values, loads, reductions, scans, sorts, stores, and the loops around them.

Open `body.py` first. `actions.py` writes stores and checks, `walk.py` loops over rows and columns of one
matrix; the other files are special orders.
"""
