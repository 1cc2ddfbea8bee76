"""Facts about ATen graphs, asked by the passes and rules.

Open `fx_nodes.py` first for single nodes, and `alias_analysis.py` for whose memory values are in.
`operand_checks.py` and `scalar_overflow.py` say what eager's kernels accept, the others what is known of
values at compile time.
"""
