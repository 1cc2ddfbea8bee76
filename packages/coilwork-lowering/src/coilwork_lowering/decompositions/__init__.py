"""The decompositions that AOTAutograd applies before lowering.

Open `table.py` first: it says which operators, and has the decompositions that correct torch's. The other
files hold them by family.
"""
