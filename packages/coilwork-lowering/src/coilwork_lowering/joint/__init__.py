"""The joint graph of forward and backward: what changes in it, and how it is divided in two.

Open `partition.py` first. `recompute.py` decides what is computed again, `saved_strides.py` how saved tensors
lie; each of the other files is one change of the graph.
"""
