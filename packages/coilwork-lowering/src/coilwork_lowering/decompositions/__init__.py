"""What AOTAutograd takes apart before lowering.

Open `table.py` first: it says which operators. `own.py` lists the decompositions that differ from torch's;
the other files hold them by family.
"""
