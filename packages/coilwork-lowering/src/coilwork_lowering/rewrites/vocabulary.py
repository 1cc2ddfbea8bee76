"""How to read the calls of a graph: operators by name, arguments by the names of their parameters."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from torch import fx

from coilwork_lowering.numbers import is_number_function
from coilwork_lowering.torch_compat.operators import Overload, overload_called, qualified_name, schema_of

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
        """The fake value of `node`."""

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
    formals = schema_of(target).arguments
    return _Signature(
        op=qualified_name(target),
        positional=tuple(formal.name for formal in formals if not formal.kwarg_only),
        defaults={formal.name: formal.default_value for formal in formals if formal.has_default_value()},
    )


class AtenVocabulary:
    """Graphs of ATen overloads, `"aten.add.Tensor"`, their arguments named by schema; and `getitem(self,
    index)`.
    """

    def keys(self, op: str) -> tuple[Hashable, ...]:
        if op == GET_ITEM:
            return (operator.getitem,)
        return (overload_called(op),)

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
        return not isinstance(node.target, Overload) or schema_of(node.target).is_mutable

    def record(self, node: fx.Node, value: Any) -> None:
        node.meta["val"] = value
