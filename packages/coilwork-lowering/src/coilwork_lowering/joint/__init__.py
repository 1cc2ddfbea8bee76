"""The joint graph of forward and backward: passes over it, and its partition.

Open `partition.py` first, then `split.py` for the cut. `recompute.py` and `rng_remat.py` decide what is
recomputed, `free_strides.py` how saved tensors lie; `corrections.py` and `pool_offsets.py` change the graph
before.
"""
