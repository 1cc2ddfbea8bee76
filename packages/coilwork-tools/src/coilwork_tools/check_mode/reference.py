"""The captured graph run as it is and in float64, side by side, node after node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx

from coilwork_frontend.random_state import RandomState, random_state
from coilwork_frontend.torch_compat.operators import draws_numbers
from coilwork_frontend.torch_compat.tensors import leaves_of, map_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What eager and float64 make of a graph.

    Attributes:
        results, wide_results: of the graph.
        inputs, wide_inputs: afterwards.
        values: every node's value and its float64 twin by the node's name, if they were asked for.
    """

    results: tuple[Any, ...]
    wide_results: tuple[Any, ...]
    inputs: tuple[Any, ...]
    wide_inputs: tuple[Any, ...]
    values: dict[str, tuple[Any, Any]]


def run_reference(gm: fx.GraphModule, inputs: Sequence[Any], *, keep: bool = False) -> Reference:
    """Run `gm` on `inputs`, which it may overwrite, and on float64 copies; with `keep`, every node's value is
    kept.
    """
    wide_inputs = [widen(value) for value in copy_inputs(inputs)]
    pair = _Pair(gm, wide_inputs, keep=keep)
    with torch.no_grad():
        results = pair.run(*inputs)
    return Reference(
        results=tuple(results),
        wide_results=tuple(pair.wide_results),
        inputs=tuple(inputs),
        wide_inputs=tuple(wide_inputs),
        values=pair.values,
    )


class _Pair(fx.Interpreter):
    """Runs each node twice. A node that float64 cannot do, or that draws random numbers, gets the widened
    native value.
    """

    def __init__(self, gm: fx.GraphModule, wide_inputs: Sequence[Any], *, keep: bool) -> None:
        super().__init__(gm)
        self._wide: dict[fx.Node, Any] = {}
        self._given = iter(wide_inputs)
        self._keep = keep
        self.values: dict[str, tuple[Any, Any]] = {}
        self.wide_results: Sequence[Any] = ()

    def run_node(self, n: fx.Node) -> Any:
        numbers = random_state()
        native = super().run_node(n)
        if n.op == "output":
            (listed,) = n.args
            assert isinstance(listed, list | tuple)
            self.wide_results = [self._wide[one] if isinstance(one, fx.Node) else one for one in listed]
            return native
        wide = next(self._given) if n.op == "placeholder" else self._widely(n, native, numbers)
        self._wide[n] = wide
        if self._keep:
            self.values[n.name] = (native, wide)
        for dead in self.user_to_last_uses.get(n, ()):
            self._wide.pop(dead, None)
        return native

    def _widely(self, node: fx.Node, native: Any, numbers: RandomState) -> Any:
        """`node` in float64; `numbers` is what it drew from."""
        if (
            node.op not in ("call_function", "call_method")
            or draws_numbers(node.target)
            or numbers.has_moved()
        ):
            return map_leaves(widen, native)
        arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda one: self._wide[one])
        arguments, keywords = map_leaves(_wide_dtype, (arguments, keywords))
        try:
            if isinstance(node.target, str):
                receiver, *arguments = arguments
                name = "double" if node.target in _CONVERSIONS else node.target
                wide = getattr(receiver, name)(*arguments, **keywords)
            else:
                wide = node.target(*arguments, **keywords)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return map_leaves(widen, native)
        return wide if _alike(native, wide) else map_leaves(widen, native)


def _alike(native: Any, wide: Any) -> bool:
    """Tell if two nested values have the same structure and shapes."""
    ours, theirs = leaves_of(native), leaves_of(wide)
    return len(ours) == len(theirs) and all(
        isinstance(a, Tensor) == isinstance(b, Tensor) and (not isinstance(a, Tensor) or a.shape == b.shape)
        for a, b in zip(ours, theirs, strict=True)
    )


_CONVERSIONS: Final = ("half", "bfloat16", "float")


def _wide_dtype(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return _WIDE.get(leaf, leaf)
    return leaf


_WIDE: Final[Mapping[torch.dtype, torch.dtype]] = MappingProxyType(
    {
        torch.float16: torch.float64,
        torch.bfloat16: torch.float64,
        torch.float32: torch.float64,
        torch.complex64: torch.complex128,
    }
)


def widen(leaf: Any) -> Any:
    """A floating-point or complex tensor in double precision; anything else as it is."""
    if isinstance(leaf, Tensor) and leaf.layout is torch.strided and leaf.dtype in _WIDE:
        return leaf.to(_WIDE[leaf.dtype])
    return leaf


def copy_inputs(values: Sequence[Any]) -> list[Any]:
    """Copies of the inputs in the same layout; those that share memory go on doing so."""
    storages: dict[int, Tensor] = {}
    made = []
    for value in values:
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            made.append(value)
            continue
        storage = value.untyped_storage()
        key = storage.data_ptr() or id(storage)
        if key not in storages:
            whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            storages[key] = whole.clone()
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        copy.set_(storages[key].untyped_storage(), value.storage_offset(), value.shape, value.stride())
        made.append(copy)
    return made
