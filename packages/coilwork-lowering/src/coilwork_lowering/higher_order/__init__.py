"""Operators that take functions: expanded to calls, or lowered as regions.

Open `wrapper_expansion.py` first: it has the operators that stand for others. `regions.py` lowers `cond` and
`while_loop`, `scan.py` has `scan` and `map`, `associative_scan.py` the scan node.
"""
