"""C++ functions that kernels call, kept as text.

Open `prelude.py` first: it picks the functions that a file needs. The others hold functions by what they do:
arithmetic, folds of lanes, loops of open length, sorting, transposition.
"""
