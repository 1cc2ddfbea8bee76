"""Rewrites of a kernel before anything is decided of its launch; each keeps what the kernel computes.

Open `table.py` first: it lists them in order, with reasons. Each of the other modules holds one kind.
"""
