"""Facts about a kernel before a line of it is written.

Open `kernel_analysis.py` first: it finds each fact once, when it is first asked for. Each of the other files
answers one question about a kernel.
"""
