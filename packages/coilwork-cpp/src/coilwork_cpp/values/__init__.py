"""Write scalar graphs as C++: what fills the loops.

Open `values.py` first. `ops.py` has a row for each scalar op; `reductions.py` and `scans.py` combine,
`elements.py` has types and conversions, `indexing.py` index arithmetic.
"""
