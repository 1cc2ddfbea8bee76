"""C++ functions that kernels call, kept as text.

Open `prelude.py` first: it picks the functions that a file needs. `math_functions.py` has functions of
numbers, `register_functions.py` folds and transposes registers, `sort_functions.py` sorts rows.
"""
