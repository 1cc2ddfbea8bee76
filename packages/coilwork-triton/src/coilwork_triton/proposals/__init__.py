"""Decide how a kernel is to run, before any of its text is written.

Open `decisions.py` first: it lists the decisions in order, tiles, walks, launches, widths, offsets.
`mapping_proposal.py` writes them as an open mapping, and adds what follows from tiles and masks.
"""
