"""C functions of single operators: which there are, and what their parameters are, as torch's own headers
declare.

They cost half of what the dispatcher costs, and take `Scalar` arguments, which the dispatcher's C interface
does not. A function is used only if its declaration is what the operator's schema asks for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from coilwork_runtime.c_types import c_types
from coilwork_runtime.schemas import Schema

FOLDER: Final = Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch/generated"
LISTS: Final[Mapping[str, tuple[str, str]]] = {
    "List[bool]": ("const int32_t*", "int64_t"),
    "Optional[List[int]]": ("const int64_t**", "int64_t"),
}
"""Parameters that generated C++ does not hand over."""
_DECLARATION: Final = re.compile(r"AOTITorchError\s+(aoti_torch_\w+)\s*\(([^)]*)\)\s*;")


def function_name(schema: Schema, device: str) -> str | None:
    """The C function for the operator on `device` (`"cpu"`, `"cuda:0"`); `None` if there is none that fits
    its schema.
    """
    kind = device.partition(":")[0] or "cpu"
    namespace, _, name = schema.name.partition("::")
    wanted = _parameters(schema)
    if namespace != "aten" or wanted is None:
        return None
    base = f"{name}_{schema.overload}" if schema.overload else name
    for symbol, declared in (
        (f"aoti_torch_{kind}_{base}", declarations(kind)),
        (f"aoti_torch_aten_{base}", declarations("aten")),
    ):
        if declared.get(symbol) == wanted:
            return symbol
    return None


@functools.cache
def declarations(kind: str) -> Mapping[str, tuple[str, ...]]:
    """Types of the parameters of each function that torch declares for `kind` of device; none where it has no
    headers.
    """
    try:
        text = Path(FOLDER, f"c_shim_{kind}.h").read_text(encoding="utf-8")
    except OSError:
        return {}
    return {found[1]: tuple(map(_type, found[2].split(","))) for found in _DECLARATION.finditer(text)}


def _type(parameter: str) -> str:
    """`const int64_t*` of `const int64_t* size`."""
    return parameter.strip().rpartition(" ")[0]


def _parameters(schema: Schema) -> tuple[str, ...] | None:
    """C types that the schema asks for; `None` if it has a parameter or result that such
    functions have not.
    """
    outs = [p for p in schema.parameters if p.is_out]
    rest = [p for p in schema.parameters if not p.is_out]
    kinds: list[str] = []
    for parameter in (*outs, *rest):
        found = LISTS.get(str(parameter.type)) or c_types(parameter.type)
        if found is None:
            return None
        kinds += found
    if not schema.writes_in_place:
        for result in schema.results:
            if str(result) not in ("Tensor", "int"):
                return None
            kinds.append("AtenTensorHandle*" if str(result) == "Tensor" else "int64_t*")
    return tuple(kinds)
