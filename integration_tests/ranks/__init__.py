"""Programs of several ranks, compiled, beside eager: over NCCL with one GPU each, or over gloo on a CPU.

`cases.py` lists them; `world.py` starts the ranks; `__main__.py` runs everything and prints the table.
"""
