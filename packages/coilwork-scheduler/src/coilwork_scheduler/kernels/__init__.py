"""Turn fusion groups into canonical kernels.

Open `compose.py` first: from a group to a draft. `tile.py` orders its ranges, `canonical.py` makes equal
computations equal kernels and names them. `template_kernel.py` builds the kernels of templates.
"""
