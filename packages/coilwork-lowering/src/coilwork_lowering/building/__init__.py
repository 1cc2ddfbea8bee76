"""The loop IR graph under construction: what values are, the nodes that are appended, and their scalars.

Open `builder.py` first. `values.py` says what an FX value is meanwhile, `buffers.py` which memory it lies in,
`view_maps.py` how views read it.
"""
