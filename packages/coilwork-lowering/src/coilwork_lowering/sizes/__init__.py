"""Sizes that torch keeps open: as index expressions with bounds, without adding guards.

Open `symbols.py` first. `computed.py` has sizes that the program computes, `squeezed.py` and `solved.py`
sizes that inputs tell only in part, and `added_guards.py` reports guards that were added all the same.
"""
