"""The loop IR graph under construction: what values are, the nodes that are appended, and the scalar graphs
in them.
"""
