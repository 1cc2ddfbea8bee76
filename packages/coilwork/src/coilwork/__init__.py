"""A deep-learning compiler for PyTorch: `torch.compile(model, backend="coilwork")`, or
`coilwork.compile(model)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coilwork.backend import compile
    from coilwork.compile_options import list_options
    from coilwork.given_options import options

__version__ = "0.1.0"

__all__ = ["__version__", "compile", "list_options", "options"]


# On use: whoever asks for the version alone waits for no compiler.
def __getattr__(name: str) -> object:
    match name:
        case "compile":
            from coilwork.backend import compile

            return compile
        case "list_options":
            from coilwork.compile_options import list_options

            return list_options
        case "options":
            from coilwork.given_options import options

            return options
    raise AttributeError(f"module 'coilwork' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
