"""The little of C++ and of Python that generators write, as values: trees (`cpp.py`, `python.py`) and
printers.

Begin with a tree; its printer is beside it. Generated text is printed from these and from nothing else.
"""
