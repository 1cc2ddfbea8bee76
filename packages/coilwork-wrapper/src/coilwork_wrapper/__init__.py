"""A program as a Python module, a `torch.fx.GraphModule`, or bytes by which it runs.

Open `module_wrapper.py` first: it drives a program by the wrapper that is asked for. `python/`, `native/` and
`fx_emitter.py` write the three forms; `runtime_interface.py` lists what emitted code needs of a runtime.
"""

from coilwork_wrapper.fx_emitter import FxEmitter, emit_fx, is_emitter
from coilwork_wrapper.fx_wrapper import FxWrapper
from coilwork_wrapper.native import EncodedProgram, emit_native, encode_program
from coilwork_wrapper.python.module import emit_python
from coilwork_wrapper.runtime_interface import LayoutError, Surface

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
    "is_emitter",
]
