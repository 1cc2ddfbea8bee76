"""Decide which stages share a kernel.

Open `fuse.py` first. `alignment.py` aligns iteration spaces, `fusion_candidate.py` finds hazards,
`profitability.py` weighs, and `row_column_fusion.py` joins rows and columns of one matrix.
"""
