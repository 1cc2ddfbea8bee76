"""Watch for guards that compiling itself adds, by turning an open size into a number or a boolean.

Lowering should add none: a compiled graph would silently serve fewer sizes than its capture promised. Each
added guard is found by comparing torch's list of guards before and after, and is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from coilwork_ir.loc import Origin, get_trace_origin
from coilwork_lowering.facts.fx_nodes import name_of_target
from coilwork_lowering.torch_compat.graphs import get_current_stack_trace
from coilwork_lowering.torch_compat.sizes import (
    find_shape_env,
    find_shape_env_among,
    guard_count,
    guard_texts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedGuard:
    """`condition` must hold of the sizes of a call; `where` in the compiler it came from, and `origin` for
    which operator.
    """

    condition: str
    where: str
    origin: Origin | None = None

    def __str__(self) -> str:
        cause = "a step outside of lowering" if self.origin is None else str(self.origin)
        return f"{self.condition} for {cause} (by {self.where})"


class GuardWatch:
    """Watch guards on the sizes of `gm` from now on. A graph without open sizes has none."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._env = find_shape_env(gm)
        self._seen = self._count()

    def _count(self) -> int:
        return 0 if self._env is None else guard_count(self._env)

    def take_added(self, origin: Origin | None = None) -> tuple[AddedGuard, ...]:
        """Return the guards that were added since the last call of this method, as those of `origin`."""
        first, self._seen = self._seen, self._count()
        if self._env is None or self._seen == first:
            return ()
        texts = guard_texts(self._env, first)
        return tuple(AddedGuard(condition=text, where=where, origin=origin) for text, where in texts)


def list_guards(known: Sequence[AddedGuard], watch: GuardWatch) -> tuple[AddedGuard, ...]:
    """Return the guards of `known`, whose operators are known, and the others that `watch` saw since."""
    own = {(guard.condition, guard.where) for guard in known}
    return (*known, *(one for one in watch.take_added() if (one.condition, one.where) not in own))


class _Trail:
    """A count of guards that have been reported: decompositions call each other, and each guard is the
    innermost one's.
    """

    def __init__(self) -> None:
        self.seen = 0


def watch_decompositions(
    table: Mapping[Any, Callable[..., Any]], record: Callable[[AddedGuard], object]
) -> dict[Any, Callable[..., Any]]:
    """`table`, where `record` is told of each guard that a decomposition adds, with its operator and the
    user's line.
    """
    trail = _Trail()
    return {op: partial(_watch, op, function, trail, record) for op, function in table.items()}


def _watch(
    _op: Any,
    _function: Callable[..., Any],
    _trail: _Trail,
    _record: Callable[[AddedGuard], object],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    env = find_shape_env_among(args)
    if env is None:
        return _function(*args, **kwargs)
    before = guard_count(env)
    result = _function(*args, **kwargs)
    for condition, where in guard_texts(env, max(before, _trail.seen)):
        origin = get_trace_origin(name_of_target(_op), get_current_stack_trace())
        _record(AddedGuard(condition=condition, where=where, origin=origin))
    _trail.seen = max(_trail.seen, guard_count(env))
    return result
