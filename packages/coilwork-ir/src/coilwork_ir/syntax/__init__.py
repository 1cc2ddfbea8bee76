"""The little of C++ and Python that generators write, as trees, and one printer for each language.

Open `cpp.py` or `python.py` first; the printer is beside it. Generated text is printed from these trees.
"""
