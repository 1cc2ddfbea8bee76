"""Stores over memory that the same kernel reads: when threads have to wait for each other first.

The threads of a program share a block's elements out among themselves. A store over the memory of a load is
safe without more where each element is loaded by the thread that stores it. That is not so for a value that
lacks a dimension of the block, such as one per row: every warp of the row loads it for itself, one thread
stores, and a warp that is late would load what was stored. Nor is it certain where what is stored does not
depend on what was loaded, for then the two may lie differently among the threads, and nothing orders them. A
barrier between all loads and the store does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.overwriting import overwritten
from coilwork_ir.scalar import Load, Reduce, Scalar, Sort, loads
from coilwork_triton.facts.kernel_analysis import Levels, action_roots, actions_of
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.statements.actions import Action, perform
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.step_stores import perform_in_steps
from coilwork_triton.text.language import tl
from coilwork_triton.values.values import Values


def perform_all(values: Values, scope: Scope, actions: Sequence[Action]) -> None:
    """The actions, whose values are known: checks, then stores, after a barrier where threads share what they
    overwrite.
    """
    stores = [action.what for action in actions if isinstance(action.what, Store)]
    if needs_barrier(values.kernel, values.shape, values.levels, stores):
        scope.writer.do(tl("debug_barrier"))
    if values.shape.step > 1:
        perform_in_steps(values, scope, stores)
        return
    for action in actions:
        perform(values, scope, action.what)


def needs_barrier(kernel: Kernel, shape: Shape, levels: Levels, stores: Iterable[Store]) -> bool:
    """True if one of `stores` may overwrite what another thread of its program has yet to load."""
    found: dict[str, list[Load]] = {}
    for node in loads(root for what in actions_of(kernel) for root in action_roots(what)):
        found.setdefault(node.buffer, []).append(node)
    return any(
        not _own_elements(store, found.get(source, ()), shape, levels)
        for store in stores
        for source in overwritten(kernel, store)
    )


def _own_elements(store: Store, found: Sequence[Load], shape: Shape, levels: Levels) -> bool:
    """True if each element that the loads `found` have of one argument is loaded by the thread that `store`
    has write it.
    """
    if not found:
        return True
    whole = frozenset(tile.letter for tile in shape.tiles if tile.axis is not None)
    if not all(whole <= shape.tile_of(levels.varies[node]) for node in found):
        return False
    source = found[0].buffer
    return any(
        node.buffer == source and node.index[0] is store.index for node in _loads_of_elements(store.value)
    )


def _loads_of_elements(value: Scalar) -> Iterator[Load]:
    """The loads that `value` depends on element by element: none below a reduction or a sort, which combine
    many.

    A scan combines many as well, but each of its results depends on the element at its own place.
    """
    seen: set[Scalar] = set()
    pending = [value]
    while pending:
        node = pending.pop()
        if node in seen or isinstance(node, Reduce | Sort):
            continue
        seen.add(node)
        if isinstance(node, Load):
            yield node
        pending.extend(node.operands)
