"""The iteration space of a kernel's text: tiles, positions, masks.

Open `shape.py` first, then `shape_builder.py`, which reads a shape from a mapping, and `space.py`, which
writes positions and masks. `vector_peeling.py` and `row_straddling_blocks.py` are rows that vectors and
blocks do not divide; `refusals.py` lists mappings that no text is written for.
"""
