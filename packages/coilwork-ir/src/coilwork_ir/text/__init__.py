"""Shared parts of the text forms of the three IRs.

Open `reader.py` first: a cursor over text, with errors that show the line. `atoms.py` and `scalars.py` write
and read the parts that several IRs spell alike.
"""
