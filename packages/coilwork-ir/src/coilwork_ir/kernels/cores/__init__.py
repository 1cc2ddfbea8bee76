"""Cores: convolutions, attention and its gradient as a kernel computes them. `nodes.py` says what they are.

`text.py` is their text and `interpret.py` what they mean. `verify.py` holds their rules, and how a
generator says that it has no kernel for one.
"""
