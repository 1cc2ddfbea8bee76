"""Facts about a kernel before a line of it is written.

Open `kernel_analysis.py` first: it finds each fact once, when it is first asked for. `vectorization.py`
says which accesses can be wide, `memory_traffic.py` how they meet memory, `precision_analysis.py` which
values need less than their types.
"""
