"""What the text forms of the three IRs share.

Open `reader.py` first: a cursor over text, with errors that show the line. `atoms.py`, `scalars.py`,
`calls.py` and `streams.py` read and write the parts that several IRs spell alike.
"""
