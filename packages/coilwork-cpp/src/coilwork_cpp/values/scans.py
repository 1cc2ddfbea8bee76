"""Scans: the variables that a scan carries from point to point, and one step of it.

A scan by a function is written out for what came before and this point's elements; only what results need is
carried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from coilwork_cpp.values.block import Block
from coilwork_cpp.values.element_types import compute_type, convert, get_value_type, make_literal
from coilwork_cpp.values.ops import apply
from coilwork_cpp.values.reductions import start_value
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Combine, Op, Parameter, Scalar, Scan, iterate_postorder
from coilwork_ir.syntax.cpp import (
    ZERO,
    Assign,
    Binary,
    Call,
    Code,
    Declare,
    Literal,
    Name,
    Scope,
    Select,
    is_atomic,
)

# ---- scans by a function ----


def list_carried_types(kind: Combine) -> tuple[str, ...]:
    """C++ types of the variables that carry what `kind` combines."""
    return tuple("u8" if value.dtype.is_bool else get_value_type(value.dtype) for value in kind.results)


def find_carried(kind: Combine, outputs: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of the values that a scan carries from point to point for the results `outputs`."""
    needed = set(outputs)
    pending = list(needed)
    while pending:
        for node in iterate_postorder((kind.results[pending.pop()],)):
            if isinstance(node, Parameter) and node.position < kind.count and node.position not in needed:
                needed.add(node.position)
                pending.append(node.position)
    return tuple(sorted(needed))


def combine_step(
    point: Block, scan: Scan, kind: Combine, state: Sequence[Code], outputs: Iterable[int]
) -> Mapping[int, Name]:
    """Update those variables of `state` that the results `outputs` need with this point's elements; names of
    results here.
    """
    needed = find_carried(kind, outputs)
    elements = [point.declare(value.dtype, "element", point.value(value)) for value in scan.operands]
    # the function has no neutral element: the first point's results are its elements
    at = point.index(scan.axis)
    first: Code = ZERO
    if scan.reverse:
        assert scan.axis.extent is not None
        first = Binary("-", point.index(scan.axis.extent), Literal("1"))
    started = point.declare(DType.BOOL, "started", Binary("!=", at, first))
    # in a block of its own: another scan's parameters are other values
    inside = point.open_nested()
    results = {k: kind.results[k] for k in needed}
    uses = Counter(operand for node in iterate_postorder(results.values()) for operand in node.operands)
    for node in iterate_postorder(results.values()):
        if isinstance(node, Op) and uses[node] > 1:
            inside.name_value(node)
        elif isinstance(node, Parameter):
            late = node.position >= kind.count
            source = elements[node.position - kind.count] if late else state[node.position]
            if node.dtype.is_bool and not late:
                source = inside.declare(node.dtype, "running", Binary("!=", source, ZERO))
            inside.known[node] = source
    codes = {k: inside.value(result) for k, result in results.items()}
    # all of them before any variable changes
    combined = {
        k: inside.declare(kind.results[k].dtype, "combined", Select(started, code, elements[k]))
        for k, code in codes.items()
    }
    point.add(*inside.body())
    for k, name in combined.items():
        point.add(Assign(state[k], Call("u8", (name,)) if kind.results[k].dtype.is_bool else name))
    return combined


# ---- steps ----


_COMBINE: Final[Mapping[str, str]] = {"sum": "add", "prod": "mul", "min": "minimum", "max": "maximum"}


def scan_states(scans: Sequence[Scan], names: FreshNames) -> dict[Scan, tuple[Name, ...]]:
    """Return the variables of each scan; results of one function have one entry, the first of them."""
    states: dict[Scan, tuple[Name, ...]] = {}
    for scan in scans:
        if not any(_is_joint(scan, other) for other in states):
            states[scan] = _new_state(scan, names)
    return states


def step_scans(point: Block, scans: Sequence[Scan], states: Mapping[Scan, Sequence[Code]]) -> None:
    """Update `states`, which are those of `scans`, with this point's elements; the scans' values become
    known.
    """
    for scan, state in states.items():
        wanted = _list_joint_scans(scan, scans)
        if all(other in point.known for other in wanted):
            continue
        if isinstance(scan.kind, Combine):
            results = combine_step(point, scan, scan.kind, state, [other.output for other in wanted])
            point.known.update({other: results[other.output] for other in wanted})
        else:
            point.known[scan] = _step_scan(point, scan, state)


def _list_joint_scans(scan: Scan, scans: Sequence[Scan]) -> list[Scan]:
    """Return the members of `scans` that are computed with `scan`."""
    return [other for other in scans if other is scan or _is_joint(other, scan)]


def _is_joint(scan: Scan, other: Scan) -> bool:
    """Tell if the two are results of one function."""
    return isinstance(scan.kind, Combine) and (scan.kind, scan.operands, scan.axis, scan.reverse) == (
        other.kind,
        other.operands,
        other.axis,
        other.reverse,
    )


def _new_state(scan: Scan, names: FreshNames) -> tuple[Name, ...]:
    """New variables: the running value, and for extremes its position; for a function all that it
    combines.
    """
    if isinstance(scan.kind, Combine):
        stem = names.make_suffixed("running")
        return tuple(Name(f"{stem}_of_{k}") for k in range(scan.kind.count))
    stem = names.make_suffixed(f"running_{scan.kind}")
    return (Name(stem), Name(f"{stem}_at")) if _comparison(scan) else (Name(stem),)


def _comparison(scan: Scan) -> str:
    return {"min": "<=", "argmin": "<=", "max": ">=", "argmax": ">="}.get(_kind_name(scan), "")


def _kind_name(scan: Scan) -> str:
    return "" if isinstance(scan.kind, Combine) else scan.kind


def scan_start(scan: Scan, state: Sequence[Name], scans: Sequence[Scan]) -> tuple[tuple[str, str, Code], ...]:
    """Type, name and start value of each variable of `scan`, which is one of `scans`.

    Rounded sums and products of f32 run in f64, sums of exponentials too.
    """
    if isinstance(scan.kind, Combine):
        # the first point takes no notice of it
        types = list_carried_types(scan.kind)
        needed = find_carried(scan.kind, [other.output for other in _list_joint_scans(scan, scans)])
        return tuple((types[k], state[k].text, Literal("0")) for k in needed)
    dtype = scan.operands[0].dtype.compute
    kinds: dict[str, ReduceKind] = {"argmin": "min", "argmax": "max"}
    if scan.kind == "logcumsumexp":
        start: Code = make_literal(float("-inf"), DType.F64 if _is_accumulated_wide(scan) else dtype)
    else:
        kind: ReduceKind = kinds.get(_kind_name(scan)) or (
            "sum" if scan.kind == "sum" else _reduce_kind(scan)
        )
        start = start_value(kind, DType.F64 if _is_accumulated_wide(scan) else dtype)
    first = (_state_type(scan), state[0].text, start)
    return (first, ("i64", state[1].text, Literal("0"))) if len(state) > 1 else (first,)


def _reduce_kind(scan: Scan) -> ReduceKind:
    match scan.kind:
        case "prod" | "min" | "max":
            return scan.kind
        case _:
            return "sum"


def _is_accumulated_wide(scan: Scan) -> bool:
    return scan.kind in ("sum", "prod", "logcumsumexp") and scan.operands[0].dtype.compute is DType.F32


def _state_type(scan: Scan) -> str:
    dtype = scan.operands[0].dtype.compute
    return "double" if _is_accumulated_wide(scan) else "u8" if dtype.is_bool else compute_type(dtype)


def _step_scan(point: Block, scan: Scan, state: Sequence[Code]) -> Code:
    """Update the variables with this point's element; code of the scan's value here."""
    source: Scalar = scan.operands[0]
    dtype = source.dtype.compute
    element = convert(point.value(source), source.dtype, dtype)
    if not is_atomic(element):
        element = point.declare(dtype, "element", element)
    comparison = _comparison(scan)
    if comparison:
        keep_nan = Binary("==", state[0], state[0])
        better: Code = Binary("&", Binary(comparison, element, state[0]), keep_nan)
        if dtype.is_float:
            better = Binary("|", better, Binary("!=", element, element))
        else:
            better = Binary(comparison, element, state[0])
        chosen = Name("better")
        at = point.index(scan.axis)
        point.add(
            Scope(
                (
                    Declare("const bool", chosen.text, better),
                    Assign(state[1], Select(chosen, at, state[1])),
                    Assign(state[0], Select(chosen, element, state[0])),
                )
            )
        )
        wants_position = scan.output == 1 or scan.kind in ("argmin", "argmax")
        result = state[1] if wants_position else convert(state[0], dtype, scan.dtype)
        return point.declare(scan.dtype, "position" if wants_position else "extreme", result)
    if scan.kind == "logcumsumexp":
        term = Call("double", (element,)) if _is_accumulated_wide(scan) else element
        point.add(Assign(state[0], Call("log_add_exp", (state[0], term))))
    elif _is_accumulated_wide(scan):
        point.add(Assign(state[0], element, "+=" if scan.kind == "sum" else "*="))
    else:
        point.add(
            Assign(state[0], apply(_COMBINE[_kind_name(scan)], (dtype, dtype), dtype, (state[0], element)))
        )
    result = Call("float", (state[0],)) if _is_accumulated_wide(scan) else state[0]
    return point.declare(scan.dtype, "running", convert(result, dtype, scan.dtype))
