"""What a parameter of an operator's schema is in the C functions that torch exports for single operators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_runtime.schemas import Type

SIMPLE_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Tensor": "AtenTensorHandle",
        "int": "int64_t",
        "float": "double",
        "number": "double",
        "bool": "int32_t",
        "str": "const char*",
        "ScalarType": "int32_t",
        "Layout": "int32_t",
        "MemoryFormat": "int32_t",
    }
)
"""Types that are one parameter, passed by value; optional ones are pointers to it."""


def c_types(kind: Type) -> tuple[str, ...] | None:
    """C types of the parameters that one of type `kind` becomes; `None` if there are no such functions."""
    text = str(kind)
    if text in SIMPLE_TYPES:
        return (SIMPLE_TYPES[text],)
    if kind.name == "Optional" and str(kind.element) in SIMPLE_TYPES:
        return (f"{SIMPLE_TYPES[str(kind.element)]}*",)
    match text:
        case "List[int]":
            return ("const int64_t*", "int64_t")
        case "List[Tensor]":
            return ("const AtenTensorHandle*", "int64_t")
        case "Optional[Device]":
            return ("int32_t*", "int32_t")
        case _:
            return None
