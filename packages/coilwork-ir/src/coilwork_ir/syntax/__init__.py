"""The little of C++ and Python that generators write, as trees, and one printer for each language.

Open `cpp.py` or `python.py` first. Generated text is printed from these trees.
"""
