"""Cores: convolutions, attention and its gradient as a kernel computes them. `nodes.py` says what they are.

`text.py` and `verify.py` are their text and their rules, `interpret.py` what they mean, `refuse.py` how a
generator says that it has no kernel for one.
"""
