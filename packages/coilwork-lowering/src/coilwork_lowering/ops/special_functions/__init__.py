"""Special functions: series, tables of them, and recurrences.

Open `special.py` first: it has the rules. `chebyshev.py` sums series, `chebyshev_tables.py` holds them
(written by `devtools/chebyshev_tables.py`), and `iterated.py` has functions with loops.
"""
