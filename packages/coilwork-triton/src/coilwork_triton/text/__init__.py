"""Triton source: its language, and the functions that kernels carry along.

Open `language.py` first: calls, types, literals, and where statements are collected. `ops.py` has a row for
each scalar op, `index_printer.py` writes offsets, `device_library.py` reads the functions in `functions/`.
"""
