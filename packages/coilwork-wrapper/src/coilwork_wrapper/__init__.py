"""Program -> Python module, torch.fx.GraphModule, or bytes by which it runs."""

from coilwork_wrapper.errors import LayoutError
from coilwork_wrapper.fx.emit import FxEmitter, emit_fx
from coilwork_wrapper.fx.wrapper import FxWrapper
from coilwork_wrapper.native import EncodedProgram, emit_native, encode_program
from coilwork_wrapper.python.module import emit_python
from coilwork_wrapper.surface import Surface

__version__ = "0.1.0"

__all__ = [
    "EncodedProgram",
    "FxEmitter",
    "FxWrapper",
    "LayoutError",
    "Surface",
    "__version__",
    "emit_fx",
    "emit_native",
    "emit_python",
    "encode_program",
]
