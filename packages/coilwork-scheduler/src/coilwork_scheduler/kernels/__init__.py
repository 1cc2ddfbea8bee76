"""From groups of stages to canonical kernels.

Open `compose.py` first: from a group to a draft. `tile.py` orders its ranges, `canonical.py` makes equal
computations equal kernels, `naming.py` names them; the other files each improve or complete a draft.
"""
