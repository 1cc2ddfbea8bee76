"""Writes and sums at positions that come from tensors: scatters, embeddings, bags of rows.

Open `scatters.py` first. `embeddings.py` and `embedding_bags.py` are its largest users; the other files are
ways to sum: sorted, in fixed point, by segments, for few rows.
"""
