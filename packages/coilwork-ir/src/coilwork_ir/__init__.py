"""Coilwork's three intermediate representations, index arithmetic, op table and target descriptions.

Open `loops/nodes.py` first, then `kernels/nodes.py` and `program/nodes.py`. `ops.py` lists the scalar ops,
`operators/` what is known of ATen's operators, `target.py` describes devices, `mapping/` how kernels run.
"""

__version__ = "0.1.0"
