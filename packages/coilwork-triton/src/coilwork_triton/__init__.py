"""Coilwork's Triton code generator: kernel IR to Triton source.

Open `codegen.py` first. `planning.py` decides how a kernel runs, by `kernel_passes/`, `facts/`, `proposals/`
and `launch/`; `emit_kernel.py` writes it, by `iteration/` and `statements/`.
"""

from coilwork_triton.codegen import TritonCodegen
from coilwork_triton.options import TritonOptions

__version__ = "0.1.0"
__all__ = ["TritonCodegen", "TritonOptions", "__version__"]
