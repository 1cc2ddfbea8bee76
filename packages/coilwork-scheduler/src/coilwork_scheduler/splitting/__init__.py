"""Split long reductions to few results, and long scans, into pieces that fill a GPU.

Open `split.py` first for reductions and `split_scans.py` for scans. `reduction_cost.py` estimates,
`pieces.py` and `combine_pieces.py` make the pieces, and `online_softmax.py` joins two passes over a row.
"""
