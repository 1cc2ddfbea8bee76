"""Sums of products on matrix units.

Open `proposal.py` first: how a product is to run. `configs.py` has its launches, `shape.py` the shape of its
text, `body.py` the statements, `refusals.py` what no text is written for.
"""
