"""Coilwork's C++ code generator for CPUs: kernel IR to vectorised, threaded C++ source.

Open `codegen.py` first: it goes from a kernel to the text of a file. `rewrites/` makes pieces of the kernel,
`planning/` decides how each runs, `nests/` and `values/` write loops and what fills them.
"""

from coilwork_cpp.codegen import CppCodegen
from coilwork_cpp.options import CppOptions

__version__ = "0.1.0"

__all__ = ["CppCodegen", "CppOptions", "__version__"]
