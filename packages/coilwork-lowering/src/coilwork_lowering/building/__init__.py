"""The loop IR graph under construction: values, nodes, sizes and scalars.

Open `builder.py` first. `values.py` says what an FX value is meanwhile and how views read it, `buffers.py`
which memory it lies in, `size_table.py` how sizes are written.
"""
