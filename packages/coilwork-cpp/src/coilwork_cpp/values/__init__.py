"""Write scalar graphs as C++: what fills the loops.

Open `block.py` first. `ops.py` has a row for each scalar op; `reductions.py` and `scans.py` combine elements,
`element_types.py` has types, literals and conversions.
"""
