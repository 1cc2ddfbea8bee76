"""Vocabularies: how patterns read the calls of a graph, by operator and by names of parameters.

`AtenVocabulary` reads graphs of ATen overloads. `CapturedVocabulary` reads Dynamo's graphs before autograd,
where the user's calls are functions, operators and methods with several spellings each.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import fx

from coilwork_lowering.python_arithmetic import is_number_function
from coilwork_lowering.torch_compat.operators import Overload, get_overload, get_qualified_name, get_schema

# ATen graphs


GET_ITEM = "getitem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A call as patterns see it.

    Attributes:
        op: the operator's name.
        arguments: every parameter's argument, defaults included.
        defaults: the parameters that have defaults.
    """

    op: str
    arguments: Mapping[str, Any]
    defaults: Mapping[str, Any]


class Vocabulary(Protocol):
    """The calls that one kind of graph is made of."""

    def keys(self, op: str) -> tuple[Hashable, ...]:
        """Return what `key` of a call of `op` may be.

        Raises:
            KeyError: there is no such operator.
        """

    def key(self, node: fx.Node) -> Hashable:
        """Return what to look a call up by; cheap, since every node of a graph is."""

    def op(self, node: fx.Node) -> str | None:
        """Return what `read` says that the operator is, or would be; cheaper."""

    def read(self, node: fx.Node) -> Read | None:
        """`node` as a call, `None` if it is not of this vocabulary."""

    def value(self, node: fx.Node) -> Any:
        """Return the fake value of `node`."""

    def writes(self, node: fx.Node) -> bool:
        """Tell whether `node` may write into memory that others read, or change what calls mean."""

    def record(self, node: fx.Node, value: Any) -> None:
        """Keep the fake value of a new node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """An overload's name, the parameters that may be given by position, and the defaults."""

    op: str
    positional: tuple[str, ...]
    defaults: Mapping[str, Any]


@cache
def _signature_of(target: Overload) -> _Signature:
    # schemas are read through a slow binding, and a graph calls few overloads many times
    formals = get_schema(target).arguments
    return _Signature(
        op=get_qualified_name(target),
        positional=tuple(formal.name for formal in formals if not formal.kwarg_only),
        defaults={formal.name: formal.default_value for formal in formals if formal.has_default_value()},
    )


class AtenVocabulary:
    """ATen overloads, `"aten.add.Tensor"`, arguments named by schema, and `getitem(self, index)`."""

    def keys(self, op: str) -> tuple[Hashable, ...]:
        if op == GET_ITEM:
            return (operator.getitem,)
        return (get_overload(op),)

    def key(self, node: fx.Node) -> Hashable:
        return node.target if node.op == "call_function" else None

    def op(self, node: fx.Node) -> str | None:
        if isinstance(node.target, Overload):
            return _signature_of(node.target).op
        return GET_ITEM if node.target is operator.getitem else None

    def read(self, node: fx.Node) -> Read | None:
        if node.op != "call_function":
            return None
        if node.target is operator.getitem:
            source, index = node.args
            return Read(op=GET_ITEM, arguments={"self": source, "index": index}, defaults={})
        if not isinstance(node.target, Overload):
            return None
        signature = _signature_of(node.target)
        arguments = dict(signature.defaults)
        arguments.update(zip(signature.positional, node.args))
        arguments.update(node.kwargs)
        return Read(op=signature.op, arguments=arguments, defaults=signature.defaults)

    def value(self, node: fx.Node) -> Any:
        return node.meta.get("val")

    def writes(self, node: fx.Node) -> bool:
        if node.op != "call_function" or node.target is operator.getitem or is_number_function(node.target):
            return False
        return not isinstance(node.target, Overload) or get_schema(node.target).is_mutable

    def record(self, node: fx.Node, value: Any) -> None:
        node.meta["val"] = value


# captured graphs


REQUIRED: Final = object()
"""Stands for the default of a parameter that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spelling:
    """One way to call an operator: its parameters in order, with their defaults, and what
    patterns call them.
    """

    op: str
    parameters: tuple[tuple[str, Any], ...]


def _make_spelling(op: str, *parameters: str, **defaults: Any) -> _Spelling:
    required = tuple((name, REQUIRED) for name in parameters)
    return _Spelling(op=op, parameters=(*required, *defaults.items()))


_MATMUL: Final = _make_spelling("matmul", "self", "other")
_MUL: Final = _make_spelling("mul", "self", "other")
_DIV: Final = _make_spelling("div", "self", "other", rounding_mode=None)
_ADD: Final = _make_spelling("add", "self", "other", alpha=1)
_TANH: Final = _make_spelling("tanh", "self")
_SOFTMAX: Final = _make_spelling("softmax", "self", "dim", dtype=None)
_FUNCTIONAL_SOFTMAX: Final = _make_spelling("softmax", "self", dim=None, _stacklevel=3, dtype=None)
_DROPOUT: Final = _make_spelling("dropout", "self", p=0.5, training=True, inplace=False)
_MASKED_FILL: Final = _make_spelling("masked_fill", "self", "mask", "value")
_WHERE: Final = _make_spelling("where", "condition", "self", "other")
_TO: Final = _make_spelling("to", "self", "dtype")
_CONV: Final = _make_spelling("conv", "input", "weight", bias=None, stride=1, padding=0, dilation=1, groups=1)
_LINEAR: Final = _make_spelling("linear", "input", "weight", bias=None)
_BATCH_NORM: Final = _make_spelling(
    "batch_norm",
    "input",
    "running_mean",
    "running_var",
    weight=None,
    bias=None,
    training=False,
    momentum=0.1,
    eps=1e-5,
)

# Functions by themselves, methods of tensors by name.
_SPELLINGS: Final[Mapping[Hashable, _Spelling]] = {
    torch.matmul: _MATMUL,
    torch.bmm: _make_spelling("matmul", "self", "mat2"),
    operator.matmul: _MATMUL,
    "matmul": _MATMUL,
    "bmm": _make_spelling("matmul", "self", "mat2"),
    torch.mul: _MUL,
    operator.mul: _MUL,
    "mul": _MUL,
    torch.div: _DIV,
    operator.truediv: _DIV,
    "div": _DIV,
    torch.add: _ADD,
    operator.add: _ADD,
    "add": _ADD,
    torch.tanh: _TANH,
    F.tanh: _TANH,
    "tanh": _TANH,
    torch.softmax: _SOFTMAX,
    F.softmax: _FUNCTIONAL_SOFTMAX,
    "softmax": _SOFTMAX,
    F.dropout: _DROPOUT,
    "masked_fill": _MASKED_FILL,
    torch.masked_fill: _MASKED_FILL,
    torch.where: _WHERE,
    "to": _TO,
    "type": _TO,
    torch.conv1d: _CONV,
    torch.conv2d: _CONV,
    torch.conv3d: _CONV,
    F.scaled_dot_product_attention: _make_spelling(
        "scaled_dot_product_attention",
        "query",
        "key",
        "value",
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        scale=None,
        enable_gqa=False,
    ),
    F.softshrink: _make_spelling("softshrink", "self", lambd=0.5),
    F.linear: _LINEAR,
    F.batch_norm: _BATCH_NORM,
}
# What some spellings call a parameter, and what patterns do.
_SYNONYMS: Final[Mapping[str, str]] = {"input": "self", "mat2": "other"}
# Methods that convert to one type.
_CONVERSIONS: Final[Mapping[str, torch.dtype]] = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
}
_PURE_MODULES: Final = frozenset(
    {
        "torch",
        "torch._C._nn",
        "torch.nn.functional",
        "torch.functional",
        "_operator",
        "operator",
        "math",
        # what a replacement calls
        "coilwork_lowering.torch_compat.flex_attention",
    }
)
_WRITING: Final = frozenset({operator.setitem, operator.delitem})
_IN_PLACE: Final = frozenset(
    "iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor".split()
)


class CapturedVocabulary:
    """Functions and methods under one name each: `torch.bmm(a, b)`, `a @ b` and `a.matmul(b)` are
    `matmul(self, other)`.
    """

    def keys(self, op: str) -> tuple[Hashable, ...]:
        found = tuple(key for key, spelling in _SPELLINGS.items() if spelling.op == op)
        if not found:
            raise KeyError(op)
        return found + ((*_CONVERSIONS, "type_as") if op == "to" else ())

    def key(self, node: fx.Node) -> Hashable:
        return node.target if node.op in ("call_function", "call_method") else None

    def op(self, node: fx.Node) -> str | None:
        if node.op == "call_method" and (node.target in _CONVERSIONS or node.target == "type_as"):
            return "to"
        spelling = _SPELLINGS.get(self.key(node))
        return None if spelling is None else spelling.op

    def read(self, node: fx.Node) -> Read | None:
        if node.op == "call_method" and node.target in _CONVERSIONS:
            if len(node.args) != 1 or node.kwargs:
                return None
            arguments = {"self": node.args[0], "dtype": _CONVERSIONS[str(node.target)]}
            return Read(op="to", arguments=arguments, defaults={})
        if node.op not in ("call_function", "call_method"):
            return None
        if node.op == "call_method" and node.target == "type_as" and len(node.args) == 2:
            like = self.value(node.args[1]) if isinstance(node.args[1], fx.Node) else None
            if not isinstance(like, torch.Tensor):
                return None
            return Read(op="to", arguments={"self": node.args[0], "dtype": like.dtype}, defaults={})
        spelling = _SPELLINGS.get(node.target)
        if spelling is None or len(node.args) > len(spelling.parameters):
            return None
        return _bind_arguments(node, spelling)

    def value(self, node: fx.Node) -> Any:
        return node.meta.get("example_value")

    def writes(self, node: fx.Node) -> bool:
        match node.op:
            case "call_method":
                name = str(node.target)
                return (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__set"))
            case "call_function":
                return _function_writes(node)
            case "call_module":
                return True
        return False

    def record(self, node: fx.Node, value: Any) -> None:
        node.meta["example_value"] = value


def _bind_arguments(node: fx.Node, spelling: _Spelling) -> Read | None:
    names = [name for name, _ in spelling.parameters]
    arguments = dict(zip(names, node.args))
    for name, argument in node.kwargs.items():
        plain = name if name in names else _SYNONYMS.get(name, name)
        if plain not in names or plain in arguments:
            return None
        arguments[plain] = argument
    defaults = {name: default for name, default in spelling.parameters if default is not REQUIRED}
    arguments = {**defaults, **arguments}
    if len(arguments) != len(names):
        return None
    return Read(op=spelling.op, arguments=_rename_arguments(arguments), defaults=_rename_arguments(defaults))


def _rename_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    # nobody cares how deep in the stack a warning about a missing `dim` points
    return {
        _SYNONYMS.get(name, name): argument for name, argument in arguments.items() if name != "_stacklevel"
    }


def _function_writes(node: fx.Node) -> bool:
    """Anything but a function that is known to make new values from old ones may write."""
    target = node.target
    if isinstance(target, Overload):
        return get_schema(target).is_mutable
    assert callable(target)
    name, module = getattr(target, "__name__", ""), getattr(target, "__module__", None)
    if module in ("operator", "_operator"):
        # the names of `or_` and `and_` end so since the words are Python's
        return target in _WRITING or name in _IN_PLACE
    if module not in _PURE_MODULES or name.endswith("_") or node.kwargs.get("out"):
        return True
    if target is F.embedding:
        return _argument(node, target, "max_norm") is not None
    if name.endswith(("batch_norm", "instance_norm")):
        return target is not F.batch_norm or _argument(node, target, "training") is not False
    return bool(_argument(node, target, "inplace"))


def _argument(node: fx.Node, function: Callable[..., Any], name: str) -> Any:
    """Return the argument of a parameter; its default, or `None`, if it is not given."""
    if name in node.kwargs:
        return node.kwargs[name]
    position, default = _parameter(function, name)
    if position is None:
        return None
    return node.args[position] if position < len(node.args) else default


@cache
def _parameter(function: Callable[..., Any], name: str) -> tuple[int | None, Any]:
    """Position and default of a parameter of one of torch's Python functions; those written in C++ have none
    such.
    """
    if inspect.isbuiltin(function):
        return None, None
    parameters = inspect.signature(function).parameters
    if name not in parameters:
        return None, None
    return list(parameters).index(name), parameters[name].default
