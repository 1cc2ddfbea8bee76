"""Coilwork's Triton code generator: kernel IR to Triton source."""

from coilwork_triton.codegen import TritonCodegen
from coilwork_triton.launch.options import TritonOptions

__version__ = "0.1.0"
__all__ = ["TritonCodegen", "TritonOptions", "__version__"]
