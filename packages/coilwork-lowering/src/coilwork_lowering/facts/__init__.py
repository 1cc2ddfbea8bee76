"""What one may ask of an ATen graph: lines, memory, what is computed where it is read, which values are
known. Nothing here changes a graph.
"""
