"""Operators that take functions: written out as calls, or lowered as regions.

Open `written_out.py` first: it lists the operators that stand for others. `regions.py` lowers `cond` and
`while_loop`; files named `..._scans.py` have `scan`, `map` and `associative_scan`.
"""
