"""The reference of check mode: a captured graph in eager and in float64, and what differs from them.

Two correct programs in f32 differ in the order of their sums, and no fixed tolerance fits every model.
Eager's error against float64 says how much rounding a value suffers at all; a right value is about as far
off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx

from coilwork_frontend.random_state import RandomState, get_random_state
from coilwork_frontend.torch_compat.operators import is_random
from coilwork_frontend.torch_compat.tensors import list_leaves, map_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The values of a graph in eager and in float64.

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
        numbers = get_random_state()
        native = super().run_node(n)
        if n.op == "output":
            (listed,) = n.args
            assert isinstance(listed, list | tuple)
            self.wide_results = [self._wide[one] if isinstance(one, fx.Node) else one for one in listed]
            return native
        wide = next(self._given) if n.op == "placeholder" else self._compute_in_float64(n, native, numbers)
        self._wide[n] = wide
        if self._keep:
            self.values[n.name] = (native, wide)
        for dead in self.user_to_last_uses.get(n, ()):
            self._wide.pop(dead, None)
        return native

    def _compute_in_float64(self, node: fx.Node, native: Any, numbers: RandomState) -> Any:
        """`node` in float64; `numbers` is what it drew from."""
        if node.op not in ("call_function", "call_method") or is_random(node.target) or numbers.has_moved():
            return map_leaves(widen, native)
        arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda one: self._wide[one])
        arguments, keywords = map_leaves(_widen_dtype, (arguments, keywords))
        try:
            if isinstance(node.target, str):
                receiver, *arguments = arguments
                name = "double" if node.target in _CONVERSIONS else node.target
                wide = getattr(receiver, name)(*arguments, **keywords)
            else:
                wide = node.target(*arguments, **keywords)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return map_leaves(widen, native)
        return wide if _have_equal_structure(native, wide) else map_leaves(widen, native)


def _have_equal_structure(native: Any, wide: Any) -> bool:
    """Return True if two nested values have the same structure and shapes."""
    ours, theirs = list_leaves(native), list_leaves(wide)
    return len(ours) == len(theirs) and all(
        isinstance(a, Tensor) == isinstance(b, Tensor) and (not isinstance(a, Tensor) or a.shape == b.shape)
        for a, b in zip(ours, theirs, strict=True)
    )


_CONVERSIONS: Final = ("half", "bfloat16", "float")


def _widen_dtype(leaf: Any) -> Any:
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
    """Return a floating-point or complex tensor in double precision; anything else as it is."""
    if isinstance(leaf, Tensor) and leaf.layout is torch.strided and leaf.dtype in _WIDE:
        return leaf.to(_WIDE[leaf.dtype])
    return leaf


def copy_inputs(values: Sequence[Any]) -> list[Any]:
    """Copies of the inputs in the same layout; those that share memory go on doing so."""
    storages: dict[int, Tensor] = {}
    copies = []
    for value in values:
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            copies.append(value)
            continue
        storage = value.untyped_storage()
        key = storage.data_ptr() or id(storage)
        if key not in storages:
            whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            storages[key] = whole.clone()
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        copy.set_(storages[key].untyped_storage(), value.storage_offset(), value.shape, value.stride())
        copies.append(copy)
    return copies


# ---- comparison ----


# Eager's error is one draw of a scattered quantity, small by luck in small tensors.
FACTOR: Final = 8.0
# Units in the last place of the largest element.
FLOOR_ULPS: Final = 64.0


def describe_disagreement(ours: object, eager: object, wide: object) -> str:
    """Describe how `ours` differs from the reference; empty if it does not.

    `wide` is the value in float64 (complex128). An integer or boolean that differs from eager's is wrong
    unless float64 gives it: where a rounding decided, either may be right.
    """
    if not isinstance(eager, Tensor):
        return "" if ours == eager or _are_both_nan(ours, eager) else f"{ours!r} instead of {eager!r}"
    if not isinstance(ours, Tensor):
        return f"{ours!r} instead of a tensor"
    if ours.dtype != eager.dtype:
        return f"{ours.dtype} instead of {eager.dtype}"
    if ours.shape != eager.shape:
        return f"shape {tuple(ours.shape)} instead of {tuple(eager.shape)}"
    if eager.numel() == 0 or eager.layout is not torch.strided:
        return ""
    if eager.is_complex():
        reference = torch.view_as_real(wide.resolve_conj()) if isinstance(wide, Tensor) else None
        parts = [torch.view_as_real(value.resolve_conj()) for value in (ours, eager)]
        return describe_disagreement(parts[0], parts[1], reference)
    reference = wide if isinstance(wide, Tensor) and wide.shape == eager.shape else eager
    if not eager.is_floating_point():
        return _compare_exactly(ours, eager, reference)
    return _format_rounded(ours.double(), eager.double(), reference.double(), eager.dtype)


def _are_both_nan(ours: object, eager: object) -> bool:
    return ours != ours and eager != eager


def _compare_exactly(ours: Tensor, eager: Tensor, reference: Tensor) -> str:
    apart = (ours != eager) & (ours != reference.to(eager.dtype))
    if not apart.any():
        return ""
    first = tuple(apart.nonzero()[0].tolist())
    return (
        f"{int(apart.sum())} of {apart.numel()} elements differ; at {list(first)} {ours[first].item()} "
        f"instead of {eager[first].item()}"
    )


def _format_rounded(ours: Tensor, eager: Tensor, reference: Tensor, dtype: torch.dtype) -> str:
    narrow = reference.to(dtype).double()
    odd = _kinds(ours)
    apart = (odd != _kinds(eager)) & (odd != _kinds(narrow))
    if apart.any():
        first = tuple(apart.nonzero()[0].tolist())
        return f"at {list(first)} {ours[first].item()} instead of {eager[first].item()}"
    finite = (odd == 0) & torch.isfinite(reference) & torch.isfinite(eager)
    distance = torch.where(finite, (ours - reference).abs(), 0.0)
    error, eagers = distance.max().item(), torch.where(finite, (eager - reference).abs(), 0.0).max().item()
    scale = torch.where(finite, reference, 0.0).abs().max().item()
    limit = FACTOR * eagers + FLOOR_ULPS * torch.finfo(dtype).eps * scale
    if error <= limit:
        return ""
    at = int(distance.flatten().argmax())
    first = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), ours.shape))
    return (
        f"off from float64 by {error:.3g}, eager by {eagers:.3g}; at {list(first)} {ours[first].item():.9g} "
        f"instead of {eager[first].item():.9g}"
    )


def _kinds(value: Tensor) -> Tensor:
    """0 for numbers, else 1, 2, 3 for NaN and the two infinities."""
    return value.isnan().int() + 2 * value.isposinf().int() + 3 * value.isneginf().int()
