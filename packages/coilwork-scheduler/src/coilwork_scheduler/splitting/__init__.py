"""Do long reductions to few results, and long scans, in pieces that fill a GPU.

Open `split.py` first for reductions and `scans.py` for scans. `judge.py` decides whether and how, by
`figures.py`; `pieces.py` and `combine.py` make the pieces.
"""
