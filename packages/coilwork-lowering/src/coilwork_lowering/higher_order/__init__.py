"""Operators that take functions: written out as the calls that they stand for (`scan`, `map`, wrapped calls),
or lowered as regions (`cond`, `while_loop`).
"""
