"""How a kernel is to run, decided in a table of proposals before any of its text is written.

Open `table.py` first: it lists the decisions in order, tiles, walks, launches, widths, offsets. Where one has
several answers, they are rules in rows, with a pattern and a reason each.
"""
