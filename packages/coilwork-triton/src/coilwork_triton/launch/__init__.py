"""Propose which launches of a kernel are tried: block sizes, warps, stages.

Open `configs.py` first: it has a rule for each kind of kernel, with the reasons. `reductions.py`,
`columns.py` and `sorts.py` hold the larger kinds; `search_space.py` says what a search may try besides.
The grid follows from the tiles, in `iteration/shape.py`.
"""
