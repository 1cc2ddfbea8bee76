"""Small programs whose speed depends on layouts, beside other compilers.

`programs.py` lists them; their modules stand in `images.py`, `networks.py` and `sounds.py`.
"""
