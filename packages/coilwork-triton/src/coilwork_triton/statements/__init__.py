"""Write the loops and stores of a kernel, and their order.

Open `body.py` first. `actions.py` writes stores and checks, `walk.py` loops over rows and columns of one
matrix; the other files are special orders.
"""
