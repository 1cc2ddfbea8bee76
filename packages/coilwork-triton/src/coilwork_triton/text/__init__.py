"""The parts of Triton source, and how it is written.

Open `writer.py` first: where statements are collected. `ops.py` has a row for each scalar op, `types.py`
types and literals, `index_printer.py` offsets, `device_library.py` the functions in `functions/`.
"""
