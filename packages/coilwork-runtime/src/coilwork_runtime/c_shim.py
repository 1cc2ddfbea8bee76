"""Operators as torch's C interface knows them: schemas, C types, and C functions of single operators.

A function of its own costs half of what the dispatcher costs, and is the only way to operators with `Scalar`
arguments, which the dispatcher's C interface cannot carry. Its C parameters follow from the operator's
schema. Generated C++ declares the functions of `C_FUNCTIONS` by hand; every one is exported by libtorch_cpu
from 2.11 on, and the tests of `coilwork-cpp-wrapper` compare them with torch's headers. The native executor
finds further ones in the headers, and uses a function only if its declaration is what the schema asks for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import torch

from coilwork_runtime.torch_compat import find_operator_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """The type of a parameter or result.

    `name`: `Tensor`, `int`, `float`, `bool`, `str`, `number`, `Device`, `ScalarType`, `Layout`,
    `MemoryFormat`, `Generator`, …, or `Optional` or `List` of `element`.
    """

    name: str
    element: Type | None = None

    def __str__(self) -> str:
        return self.name if self.element is None else f"{self.name}[{self.element}]"

    def mentions(self, name: str) -> bool:
        """Tell if it is, or is made of, the type called `name`."""
        return self.name == name or (self.element is not None and self.element.mentions(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter.

    `length`: for a list, the length that a single number given in its place is repeated to, if there is one.
    """

    name: str
    type: Type
    default: Any = None
    has_default: bool = False
    length: int | None = None
    is_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """An operator overload: `aten::mm` and `out`."""

    name: str
    overload: str
    parameters: tuple[Parameter, ...]
    results: tuple[Type, ...]

    @property
    def writes_in_place(self) -> bool:
        """Out variants and operators named `op_` return what they were given, which their C functions leave
        out.
        """
        return any(p.is_out for p in self.parameters) or self.name.endswith("_")


def parse_type(text: str) -> Type:
    """Read a type as torch prints it, e.g. `"List[Optional[Tensor]]"`. A symbolic integer is an
    integer here.
    """
    head, bracket, rest = text.partition("[")
    if bracket and head in ("Optional", "List"):
        return Type(name=head, element=parse_type(rest.removesuffix("]")))
    return Type(name="int" if text == "SymInt" else text)


def find_schema(target: str) -> Schema | None:
    """Return the schema of `"aten.mm.out"`; `None` if torch has no such operator overload."""
    try:
        return _schema(target)
    except LookupError:
        return None


@functools.cache
def _schema(target: str) -> Schema:
    """Do as `find_schema`. An absent operator is not remembered: a library may register it later.

    Raises:
        LookupError: there is none.
    """
    parts = target.split(".")
    if len(parts) != 3:
        raise LookupError(target)
    namespace, name, overload = parts
    schema = find_operator_schema(namespace, name, overload)
    if schema is None:
        raise LookupError(target)
    return Schema(
        name=f"{namespace}::{name}",
        overload=schema.overload_name,
        parameters=tuple(
            Parameter(
                name=a.name,
                type=parse_type(str(a.real_type)),
                default=a.default_value if a.has_default_value() else None,
                has_default=a.has_default_value(),
                length=a.N,
                is_out=a.is_out,
            )
            for a in schema.arguments
        ),
        results=tuple(parse_type(str(r.real_type)) for r in schema.returns),
    )


# ---- C types ----


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


def list_c_types(kind: Type) -> tuple[str, ...] | None:
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


# ---- functions that generated C++ declares ----


@dataclass(frozen=True, slots=True, kw_only=True)
class CFunction:
    """A C function for one operator overload.

    `scalars`: how the operator uses its `Scalar` arguments, which the C function takes as `double`. With
    `"promote"` an integer makes another result than the equal `double` unless a tensor argument is of
    floating point; with `"cast"` it does not, because the value is converted to the element type at hand.
    """

    symbol: str
    scalars: Literal["promote", "cast"] = "promote"


_FUNCTIONS: Final[Mapping[str, str]] = {
    # matrix products, into a given tensor
    "aten.mm.out": "mm_out",
    "aten.bmm.out": "bmm_out",
    "aten.addmm.out": "addmm_out",
    "aten.baddbmm.out": "baddbmm_out",
    "aten._int_mm.out": "_int_mm_out",
    "aten.addbmm.default": "addbmm",
    "aten.addmv.default": "addmv",
    # arithmetic with a Scalar
    "aten.add.Tensor": "add_Tensor",
    "aten.add.Scalar": "add_Scalar",
    "aten.mul.Tensor": "mul_Tensor",
    "aten.mul.Scalar": "mul_Scalar",
    "aten.pow.Scalar": "pow_Scalar",
    "aten.pow.Tensor_Scalar": "pow_Tensor_Scalar",
    "aten.pow.Tensor_Tensor": "pow_Tensor_Tensor",
    "aten.histc.default": "histc",
    "aten._addmm_activation.default": "_addmm_activation",
    # frequent and heavy
    "aten.convolution.default": "convolution",
    "aten.max_pool2d_with_indices.default": "max_pool2d_with_indices",
    "aten.avg_pool2d.default": "avg_pool2d",
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "_scaled_dot_product_flash_attention_for_cpu",
    "aten.cat.default": "cat",
    "aten.cumsum.default": "cumsum",
    "aten.topk.default": "topk",
    "aten.sort.default": "sort",
    "aten.sort.stable": "sort_stable",
    "aten.nonzero.default": "nonzero",
    "aten.native_dropout.default": "native_dropout",
}
_CASTING: Final[Mapping[str, str]] = {
    "aten.fill_.Scalar": "fill__Scalar",
    "aten.scatter.value_out": "scatter_value_out",
}


def _table() -> Mapping[str, CFunction]:
    entries = {target: CFunction(symbol=f"aoti_torch_cpu_{name}") for target, name in _FUNCTIONS.items()}
    entries.update(
        (target, CFunction(symbol=f"aoti_torch_cpu_{name}", scalars="cast"))
        for target, name in _CASTING.items()
    )
    entries["aten.full.default"] = CFunction(symbol="aoti_torch_aten_full", scalars="cast")
    return MappingProxyType(entries)


C_FUNCTIONS: Final[Mapping[str, CFunction]] = _table()
"""Operator overload -> its C function."""
NUMBER_READS: Final = ("aten._local_scalar_dense.default", "aten.item.default")
"""Operator overloads that read a tensor's number, for which there is a C function of another form."""


# ---- functions in the headers of torch ----


FOLDER: Final = Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch/generated"
LISTS: Final[Mapping[str, tuple[str, str]]] = {
    "List[bool]": ("const int32_t*", "int64_t"),
    "Optional[List[int]]": ("const int64_t**", "int64_t"),
}
"""Parameters that generated C++ does not hand over."""
_DECLARATION: Final = re.compile(r"AOTITorchError\s+(aoti_torch_\w+)\s*\(([^)]*)\)\s*;")


def find_function_name(schema: Schema, device: str) -> str | None:
    """Return the C function for the operator on `device` (`"cpu"`, `"cuda:0"`); `None` if there is none that
    fits its schema.
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
        types = LISTS.get(str(parameter.type)) or list_c_types(parameter.type)
        if types is None:
            return None
        kinds += types
    if not schema.writes_in_place:
        for result in schema.results:
            if str(result) not in ("Tensor", "int"):
                return None
            kinds.append("AtenTensorHandle*" if str(result) == "Tensor" else "int64_t*")
    return tuple(kinds)
