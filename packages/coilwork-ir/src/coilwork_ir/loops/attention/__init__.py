"""Attention and its gradient as nodes: `nodes.py` says what they are, `interpret.py` what they mean.

`text.py` and `verify.py` are their text and their rules, `library_form.py` the form that libraries take.
"""
