"""Programs whose speed depends on arithmetic: products, attention and what surrounds them, beside other
compilers.

`programs.py` lists them; `case.py` says what one is, and `timing.py` how it is measured.
"""
