"""The iteration space of a kernel's text: tiles, positions, masks.

Open `shape.py` first, then `space.py`, which writes positions and masks. `two_rows.py` and `whole_vectors.py`
are rows that blocks and vectors do not divide; `refusals.py` lists mappings that no text is written for.
"""
