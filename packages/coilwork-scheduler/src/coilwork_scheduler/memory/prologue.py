"""What a program begins with: sizes read off its inputs, and checks of how these lie in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.index import Expr, as_int, product
from coilwork_ir.kernels.nodes import Schedule
from coilwork_ir.loops.nodes import Extern
from coilwork_ir.operators import find_target_info
from coilwork_ir.program.nodes import BindSymbol, CheckLayout, Instruction
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.memory.storage import step_touches


def prologue(schedule: Schedule, *, checked: bool, aligned: Collection[str]) -> Iterator[Instruction]:
    """Bind the symbols of `schedule`, and check its inputs: all of them if `checked`, else those that must be
    `aligned`.

    Raises:
        ScheduleError: a symbol is bound by no input.
    """
    bound = {entry for entry in schedule.inputs if isinstance(entry, Expr)}
    for entry in schedule.inputs:
        if isinstance(entry, Buffer):
            yield from _bound_by(entry, schedule, bound)
    for symbol in schedule.symbols:
        if symbol not in bound:
            raise ScheduleError(
                "unbound-symbol",
                f"size symbol {symbol.name} of @{schedule.name} stands alone in no input's shape or strides",
                remedy="pass it as an integer input",
            )
    unchecked = _generator_states(schedule) | _packed_weights(schedule)
    for entry in schedule.inputs:
        if not isinstance(entry, Buffer) or entry.name in unchecked:
            continue
        if checked or entry.name in aligned:
            yield CheckLayout(buffer=entry.name, aligned=entry.name in aligned)


def _bound_by(buffer: Buffer, schedule: Schedule, bound: set[Expr]) -> Iterator[BindSymbol]:
    """The symbols that stand alone in the layout of `buffer`, added to `bound`."""
    wanted = schedule.symbols
    for dim, extent in enumerate(buffer.shape):
        if extent.is_symbol and extent not in bound and extent in wanted:
            bound.add(extent)
            yield BindSymbol(symbol=extent, buffer=buffer.name, dim=dim)
    for dim, stride in enumerate(buffer.strides):
        if stride.is_symbol and stride not in bound and stride in wanted:
            bound.add(stride)
            yield BindSymbol(symbol=stride, buffer=buffer.name, dim=dim, what="stride")


def _packed_weights(schedule: Schedule) -> frozenset[str]:
    """Inputs in a layout of a library's own, which have no strides to check: the weights of its operators."""
    found: set[str] = set()
    for step in schedule.steps:
        place = find_target_info(step.target).packed_argument if isinstance(step, Extern) else None
        if isinstance(step, Extern) and place is not None:
            weight = step.args[place]
            if isinstance(weight, Ref):
                found.add(weight.name)
    return frozenset(found)


def _generator_states(schedule: Schedule) -> frozenset[str]:
    """Inputs that look like the state of a random generator: one or two integers that only operators read.

    Attention hands such a state from its forward to its backward operator. Torch describes it as being on the
    GPU, where its kernels have put it only under CUDA graphs; the operators take it from anywhere, so it is
    not checked.
    """
    passed_on = {
        entry.name
        for entry in schedule.inputs
        if isinstance(entry, Buffer)
        and entry.dtype.is_integer
        and len(entry.shape) <= 1
        and as_int(product(entry.shape)) in (1, 2)
    }
    by_operators: set[str] = set()
    for step in schedule.steps:
        if isinstance(step, Extern):
            by_operators.update(step_touches(step))
        else:
            passed_on.difference_update(step_touches(step))
    return frozenset(passed_on & by_operators)
