"""Write reductions, scans and sorts.

Open `reductions.py` first: a row per kind, in registers and over a loop. `scans.py`, `sharing.py` and
`sorting.py` write the others, `functions.py` the functions that they combine by.
"""
