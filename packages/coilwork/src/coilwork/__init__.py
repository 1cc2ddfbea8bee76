"""A deep-learning compiler for PyTorch. Open `backend.py` first, then `compile_graph.py` and `stages.py`."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coilwork.aot import export, load, standalone_compile
    from coilwork.backend import compile, options
    from coilwork.compile_options import list_options
    from coilwork_frontend.torch_compat.saved_functions import drop_thread_guard
    from coilwork_tools.explain.progress import on_progress

__version__ = "0.1.0"

__all__ = ["__version__", "compile", "export", "list_options", "load", "on_progress", "options"]
__all__ += ["drop_thread_guard", "standalone_compile"]

_PLACES = MappingProxyType(
    {"compile": "coilwork.backend", "list_options": "coilwork.compile_options", "options": "coilwork.backend"}
    | dict.fromkeys(("export", "load", "standalone_compile"), "coilwork.aot")
    | {"on_progress": "coilwork_tools.explain.progress"}
    | {"drop_thread_guard": "coilwork_frontend.torch_compat.saved_functions"}
)


# On use: whoever asks for the version alone waits for no compiler.
def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'coilwork' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
