"""Special functions as scalar formulas, series and loops.

Open `formulas.py` first: formulas over the op table, and its rows with loops. `chebyshev.py` has what is
computed by Chebyshev series, whose coefficients `devtools/chebyshev_tables.py` wrote into
`chebyshev_tables.py`.
"""
