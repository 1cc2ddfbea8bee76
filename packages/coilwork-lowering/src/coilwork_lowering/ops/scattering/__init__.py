"""Writes and sums at positions that come from tensors: scatters, embeddings, bags of rows.

Open `scatters.py` first. `deterministic_scatter.py` gives the same sums on every run, by `segment_sums.py`
and `fixed_point_sums.py`; `embeddings.py` is the largest user, and `segment_bag.py` says what a bag holds.
"""
