"""What the text forms of the three IRs share: a reader with good errors, and the forms of names, types and
scalars.
"""
