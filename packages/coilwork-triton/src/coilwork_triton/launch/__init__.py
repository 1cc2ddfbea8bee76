"""Propose which launches of a kernel are tried: block sizes, warps, stages.

Open `configs.py` first: it chooses the file by the kernel's shape, such as `pointwise.py`, `reductions.py` or
`columns.py`. `search_space.py` says what a search may try besides.
"""
