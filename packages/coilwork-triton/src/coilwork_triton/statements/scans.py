"""Write scans: within one block, with a carried prefix over a loop, and across programs by look-back.

A running log of a sum of exponentials is carried as two values, the largest so far and the sum of
exponentials relative to it: combining takes no logarithm, and one is taken per point when the scan is done.

Where memory has neighbours along other ranges than the scan's, threads that load 16 bytes each have points of
one position, and a scan would be an exchange between threads at every point. A block in runs deals positions
out so that a thread has several neighbours: it scans its run alone, only the runs' results are scanned across
threads, and each point is combined once with what comes before its run.

A function that combines tuples has no neutral element (`combine_functions.py`). The first block of a loop is
combined with nothing. Where lanes out of range come first, or there are runs before which there is nothing,
each tuple has a flag behind its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Combine, Combining
from coilwork_ir.syntax.python import Binary, Call, Expression, Name, Number, Tuple, method
from coilwork_triton.facts.kernel_analysis import PAIRED_SCANS
from coilwork_triton.iteration.shape import PIECE, RowSharing
from coilwork_triton.launch.parameters import round_up_to_power_of_two
from coilwork_triton.statements.combine_functions import (
    combine_name,
    get_accumulation_type,
    has_loops,
    make_exclusive_name,
    make_stepwise_scan_name,
)
from coilwork_triton.text.language import (
    Writer,
    extent,
    extents,
    fill_block,
    fill_shape,
    free_constant,
    get_triton_type,
    insert_axes,
    largest,
    smallest,
    tl,
    tl_name,
)

# Blocks and loops


COMBINE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sum": "",
        "prod": "combine_mul",
        "min": "combine_running_min",
        "argmin": "combine_running_min",
        "max": "combine_running_max",
        "argmax": "combine_running_max",
        "logcumsumexp": "combine_logsumexp",
    }
)
# Of pairs: what comes before, and what it makes with the run that it comes before.
_EXCLUSIVE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sum": "exclusive_add",
        "prod": "exclusive_mul",
        "min": "exclusive_running_min",
        "argmin": "exclusive_running_min",
        "max": "exclusive_running_max",
        "argmax": "exclusive_running_max",
        "logcumsumexp": "exclusive_logsumexp",
    }
)


def scan_kinds() -> frozenset[str]:
    """Return the kinds this module can write."""
    return frozenset(COMBINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSite:
    """One scan of a kernel: `value`, a block that spans the scan axis, `valid` where it lies in range.

    `positions` is a block of the same shape with the position along the axis; it is read by kinds that report
    one. The axis is in runs of the length that the parameter `run` names, if it does. A function combines
    `value` together with `others`, whose types are `other_dtypes`; in a loop `is_first` holds for the first
    block. `inside` is true in lanes that are points, of kinds for which some lanes decide what all of them
    do.
    """

    kind: Combining
    reverse: bool
    dtype: DType
    value: Expression
    valid: Expression | None
    shape: tuple[str, ...]
    axis: int
    positions: Expression
    index_dtype: DType
    run: str = ""
    others: tuple[Expression, ...] = ()
    other_dtypes: tuple[DType, ...] = ()
    is_first: Expression | None = None
    inside: Expression | None = None

    @property
    def has_flag(self) -> bool:
        """There is a flag behind the values, without which a function cannot combine them."""
        return isinstance(self.kind, Combine) and bool(self.run or (self.reverse and self.valid is not None))

    @property
    def has_positions(self) -> bool:
        """Values are combined together with their positions."""
        return self.kind in PAIRED_SCANS

    @property
    def carry_shape(self) -> tuple[str, ...]:
        """Shape of the carried prefix: a scalar where blocks have no other axis."""
        if len(self.shape) == 1:
            return ()
        return (*self.shape[: self.axis], "1", *self.shape[self.axis + 1 :])


def scan_identity(site: ScanSite) -> int | float | bool:
    """Return the value that changes nothing."""
    match site.kind:
        case "sum":
            return 0
        case "prod":
            return 1
        case "min" | "argmin":
            return largest(site.dtype)
        case "max" | "argmax" | "logcumsumexp":
            return smallest(site.dtype)
        case Combine():
            # with a flag that says that it is not there
            return 0


def has_deciding_lanes(kind: Combining) -> bool:
    """Tell if some lanes decide for a whole block: the way that is taken, or how often a function loops."""
    return has_loops(kind) if isinstance(kind, Combine) else kind == "logcumsumexp"


def emit_block_scan(site: ScanSite, writer: Writer) -> tuple[Name, ...]:
    """Return the running value within the block, and its position for the kinds that have one."""
    if site.run:
        return finish_scan(site, writer, _scan_runs(site, writer, ()))
    return finish_scan(site, writer, scan_along(site, writer, mask_operands(site), site.axis))


def emit_loop_scan(
    site: ScanSite, writer: Writer, carry: tuple[Name, ...], edge: Expression
) -> tuple[Name, ...]:
    """One step of a looped scan: the block's scan after the prefix `carry`, which is moved past the block.

    `edge` is true in the lane that holds the block's last value in scan order, if the block is not in runs.
    """
    if site.run:
        return finish_scan(site, writer, _scan_runs(site, writer, carry))
    local = scan_along(site, writer, mask_operands(site), site.axis)
    found = combine_states(site, writer, carry, local)
    if isinstance(site.kind, Combine) and not site.has_flag:
        assert site.is_first is not None
        found = tuple(
            writer.bind("running", tl("where", site.is_first, alone, after))
            for alone, after in zip(local, found, strict=True)
        )
    keep = len(site.shape) > 1
    for old, new, dtype in zip(carry, found, list_state_types(site)):
        writer.assign((old,), select_element(new, edge, dtype, site.axis, keep=keep))
    return finish_scan(site, writer, found)


def start_carry(site: ScanSite, writer: Writer) -> tuple[Name, ...]:
    """Return the prefix of nothing, before the loop."""
    if isinstance(site.kind, Combine):
        return tuple(
            writer.bind("carry", fill_shape(site.carry_shape, 0, dtype)) for dtype in list_state_types(site)
        )
    first, second = list_state_types(site)
    carry = writer.bind("carry", fill_shape(site.carry_shape, scan_identity(site), first))
    if site.kind == "logcumsumexp":
        return (carry, writer.bind("carry_total", fill_shape(site.carry_shape, 0, second)))
    if not site.has_positions:
        return (carry,)
    return (carry, writer.bind("carry_position", fill_shape(site.carry_shape, 0, second)))


def finish_scan(site: ScanSite, writer: Writer, state: tuple[Name, ...]) -> tuple[Name, ...]:
    """Return the results of a scan whose running values are `state`."""
    if isinstance(site.kind, Combine):
        return state[: site.kind.count]
    if site.kind != "logcumsumexp":
        return state
    largest, total = state
    log = Call(writer.device("log_of_normal"), (total,))
    return (writer.bind("running", Binary("+", largest, log)),)


def mask_operands(site: ScanSite) -> tuple[Expression, ...]:
    """Return the operands of a scan, neutral behind the end: values, and positions for the kinds that report
    one.
    """
    if isinstance(site.kind, Combine):
        return _mask_tuples(site)
    kept: Expression = site.value
    if site.valid is not None:
        # from the end, lanes out of range come first
        kept = tl("where", site.valid, kept, free_constant(scan_identity(site), site.dtype))
    kept = tl("broadcast_to", kept, extents(site.shape))
    if not site.has_positions:
        return (kept,)
    if site.dtype.is_bool:
        kept = method(kept, "to", tl_name("int32"))
    return (kept, tl("broadcast_to", site.positions, extents(site.shape)))


def _mask_tuples(site: ScanSite) -> tuple[Expression, ...]:
    shape = extents(site.shape)
    found: list[Expression] = []
    for value, dtype in zip((site.value, *site.others), (site.dtype, *site.other_dtypes), strict=True):
        wide = tl("broadcast_to", value, shape)
        if dtype.is_bool:
            wide = method(wide, "to", tl_name("int32"))
        found.append(wide if site.inside is None else tl("where", site.inside, wide, Number(0)))
    if site.has_flag:
        if site.valid is None:
            found.append(fill_block(shape.items, 1, DType.I32))
        else:
            found.append(method(tl("broadcast_to", site.valid, shape), "to", tl_name("int32")))
    return tuple(found)


def scan_along(
    site: ScanSite, writer: Writer, operands: tuple[Expression, ...], axis: int
) -> tuple[Name, ...]:
    """Return the states that a scan of `operands` along `axis` carries from point to point."""
    backwards = (("reverse", Number(True)),) if site.reverse else ()
    if isinstance(site.kind, Combine):
        combining = combine_name(site.kind, flagged=site.has_flag)
        return _bind_tuple(writer, _scan_with_function(site, writer, operands, axis, combining), site)
    if site.has_positions:
        combine = writer.device(COMBINE[site.kind])
        found = Call(tl_name("associative_scan"), (Tuple(operands), Number(axis), combine), backwards)
        return writer.bind_all(("running", "position"), found)
    (value,) = operands
    if site.kind == "logcumsumexp":
        # the device function finds its way of combining by name
        inside = Name("None") if site.inside is None else site.inside
        sums = Call(writer.device("running_logsumexp"), (value, inside, Number(axis), Number(site.reverse)))
        return writer.bind_all(("largest", "total"), sums)
    if site.kind == "sum":
        running: Expression = Call(tl_name("cumsum"), (value, Number(axis)), backwards)
        if site.dtype.is_integer and site.dtype.itemsize < 4:
            running = method(running, "to", get_triton_type(site.dtype))
    else:
        combine = writer.device(COMBINE[site.kind])
        running = Call(tl_name("associative_scan"), (value, Number(axis), combine), backwards)
    return (writer.bind("running", running),)


def _scan_with_function(
    site: ScanSite, writer: Writer, operands: tuple[Expression, ...], axis: int, combining: str
) -> Expression:
    """Return the scan of `operands` along `axis` with the function `combining`; step by step if it loops."""
    assert isinstance(site.kind, Combine)
    if has_loops(site.kind):
        return Call(
            writer.device(make_stepwise_scan_name(combining)), (*operands, Number(axis), Number(site.reverse))
        )
    backwards = (("reverse", Number(True)),) if site.reverse else ()
    whole = Tuple(operands) if len(operands) > 1 else operands[0]
    return Call(tl_name("associative_scan"), (whole, Number(axis), writer.device(combining)), backwards)


def _scan_runs(site: ScanSite, writer: Writer, carry: tuple[Name, ...]) -> tuple[Name, ...]:
    """Return the block's scan, each run by itself and then after those before it; `carry` comes before all,
    and is moved past the block.
    """
    axis, run = site.axis, Name(site.run)
    runs = Binary("//", Name(site.shape[axis]), run)
    dealt = Tuple((*(extent(s) for s in site.shape[:axis]), run, runs))
    kept = tuple(writer.bind("runs", tl("reshape", part, dealt)) for part in mask_operands(site))
    inside = site.inside
    if inside is not None:
        inside = tl("reshape", tl("broadcast_to", inside, extents(site.shape)), dealt)
    within = scan_along(replace(site, inside=inside), writer, kept, axis)
    types = list_state_types(site)[: len(within)]
    end = insert_axes(find_last_lane(run, site), (*(False,) * axis, True, False))
    whole = tuple(
        writer.bind("whole", select_element(v, end, t, axis, keep=False)) for v, t in zip(within, types)
    )
    # beside what has been combined with a run, what comes before it
    size = (*(extent(s) for s in site.shape[:axis]), runs)
    neutral = (scan_identity(site), *(0 for _ in types[1:]))
    nothing = [fill_block(size, n, t) for n, t in zip(neutral, types, strict=True)]
    pairs = (*nothing, *whole)
    if isinstance(site.kind, Combine):
        exclusive = _scan_with_function(site, writer, pairs, axis, make_exclusive_name(site.kind))
    else:
        backwards = (("reverse", Number(True)),) if site.reverse else ()
        combine = writer.device(_EXCLUSIVE[site.kind])
        exclusive = Call(tl_name("associative_scan"), (Tuple(pairs), Number(axis), combine), backwards)
    found = writer.bind_all(("before",) * len(whole) + ("upto",) * len(whole), exclusive)
    before, upto = found[: len(whole)], found[len(whole) :]
    if carry:
        before = combine_states(site, writer, carry, before)
        edge = insert_axes(find_last_lane(runs, site), (*(False,) * axis, True))
        # what one row carries is a number
        keep = len(site.shape) > 1
        block = tuple(
            writer.bind("block", select_element(v, edge, t, axis, keep=keep)) for v, t in zip(upto, types)
        )
        for old, new in zip(carry, combine_states(site, writer, carry, block)):
            writer.assign((old,), new)
    spread = (*(True,) * axis, False, True)
    running = combine_states(site, writer, tuple(insert_axes(v, spread) for v in before), within)
    return tuple(writer.bind("running", tl("reshape", v, extents(site.shape))) for v in running)


def combine_states(
    site: ScanSite, writer: Writer, first: Sequence[Expression], second: Sequence[Expression]
) -> tuple[Name, ...]:
    """`first`, and `second` after it."""
    if isinstance(site.kind, Combine):
        combine = writer.device(combine_name(site.kind, flagged=site.has_flag))
        return _bind_tuple(writer, Call(combine, (*first, *second)), site)
    if site.kind == "sum":
        return (writer.bind("running", Binary("+", first[0], second[0])),)
    combined = Call(writer.device(COMBINE[site.kind]), (*first, *second))
    if len(second) == 1:
        return (writer.bind("running", combined),)
    return writer.bind_all(
        ("largest", "total") if site.kind == "logcumsumexp" else ("running", "position"), combined
    )


def _bind_tuple(writer: Writer, value: Expression, site: ScanSite) -> tuple[Name, ...]:
    """Return the values that a function gives, and their flag."""
    stems = ("running",) * (1 + len(site.others)) + (("there",) if site.has_flag else ())
    return writer.bind_all(stems, value)


def list_state_types(site: ScanSite) -> tuple[DType, ...]:
    """Types of what is carried: of values, and of what comes with them."""
    if isinstance(site.kind, Combine):
        values = tuple(get_accumulation_type(dtype) for dtype in (site.dtype, *site.other_dtypes))
        return (*values, DType.I32) if site.has_flag else values
    value = DType.I32 if site.dtype.is_bool and site.has_positions else site.dtype
    return (value, value if site.kind == "logcumsumexp" else site.index_dtype)


def find_last_lane(length: Expression, site: ScanSite) -> Expression:
    """True at the last of `length` positions in scan order."""
    end = Number(0) if site.reverse else Binary("-", length, Number(1))
    return Binary("==", tl("arange", Number(0), length), end)


def select_element(value: Expression, edge: Expression, dtype: DType, axis: int, *, keep: bool) -> Expression:
    """Return the element of `value` along `axis` for which `edge` is true."""
    # one lane survives, so a maximum against the smallest value would do; a sum of zeros keeps NaN and
    # infinity too
    args = (tl("where", edge, value, tl("zeros_like", value)), Number(axis))
    total: Expression = Call(tl_name("sum"), args, (("keep_dims", Number(True)),) if keep else ())
    if dtype.is_integer and dtype.itemsize < 4:
        total = method(total, "to", get_triton_type(dtype))
    return total


# Look-back: rows that programs share. A program publishes what its piece combines to as soon as it is known.
# It asks for all pieces before its own at once, one per lane, the nearest in the first lane; lanes without a
# piece hold the neutral element. Pieces are combined in one order, whichever came first.


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatePart:
    """One of the values of `dtype` that are carried from point to point, told as `told`; `nothing` changes
    nothing.
    """

    dtype: DType
    told: DType
    nothing: int | float | bool


def _state_parts(site: ScanSite) -> tuple[_StatePart, ...]:
    first, second = list_state_types(site)
    value = _StatePart(dtype=first, told=first, nothing=scan_identity(site))
    if site.has_positions:
        # positions in a row fit 32 bits
        return (value, _StatePart(dtype=second, told=DType.I32, nothing=0))
    if site.kind == "logcumsumexp":
        return (value, _StatePart(dtype=second, told=second, nothing=0))
    return (value,)


def emit_lookback_scan(
    site: ScanSite, sharing: RowSharing, first: int, block: str, writer: Writer
) -> tuple[Name, ...]:
    """Return the running value of the program's piece, after those before it; its words begin with number
    `first`. `block` is a piece's length.
    """
    kept = tuple(writer.bind("kept", value) for value in mask_operands(site))
    early = _can_reorder(site)
    if early:
        _publish(site, sharing, first, (_reduce_piece(site, writer, kept[0]),), writer)
    local = scan_along(site, writer, kept, site.axis)
    if not early:
        edge = find_last_lane(Name(block), site)
        whole = tuple(
            writer.bind("whole", select_element(v, edge, part.dtype, site.axis, keep=False))
            for v, part in zip(local, _state_parts(site), strict=True)
        )
        _publish(site, sharing, first, whole, writer)
    before = _combine_earlier_pieces(site, sharing, first, writer)
    return finish_scan(site, writer, combine_states(site, writer, before, local))


def _can_reorder(site: ScanSite) -> bool:
    """Tell if values may be combined in any order: of floats, products of points that do not lie together may
    leave the range.
    """
    return site.kind == "sum" or (site.kind == "prod" and site.dtype.is_integer)


def _reduce_piece(site: ScanSite, writer: Writer, values: Expression) -> Name:
    """Return all of `values`, of a kind for which their order does not matter."""
    if site.kind == "sum":
        found: Expression = tl("sum", values, Number(0))
    else:
        assert not isinstance(site.kind, Combine)
        found = tl("reduce", values, Number(0), writer.device(COMBINE[site.kind]))
    if site.dtype.is_integer and site.dtype.itemsize < 4:
        found = method(found, "to", get_triton_type(site.dtype))
    return writer.bind("whole", found)


def _publish(
    site: ScanSite, sharing: RowSharing, first: int, whole: Sequence[Expression], writer: Writer
) -> None:
    """Publish what the piece combines to, for the other programs."""
    number = first
    for value, part in zip(whole, _state_parts(site), strict=True):
        for bits in _bits(value, part.told):
            writer.do(Call(writer.device("tell"), (Binary("+", sharing.word(number), PIECE), bits)))
            number += 1


def _combine_earlier_pieces(
    site: ScanSite, sharing: RowSharing, first: int, writer: Writer
) -> tuple[Expression, ...]:
    """Return the combination of all pieces before the program's."""
    lanes = round_up_to_power_of_two(sharing.count)
    if site.kind == "prod" and not _can_reorder(site):
        # what is scanned has a lane for every thread, or Triton's scans mix up copies
        lanes = max(lanes, round_up_to_power_of_two(sharing.most_threads))
    lane = writer.bind("lane", tl("arange", Number(0), Number(lanes)))
    earlier = writer.bind("earlier", Binary("-", Binary("-", PIECE, Number(1)), lane))
    there = writer.bind("there", Binary(">=", earlier, Number(0)))
    number = first
    found: list[Name] = []
    for part in _state_parts(site):
        words = []
        for _ in range(-(-part.told.itemsize // 4)):
            place = Binary("+", sharing.word(number), earlier)
            words.append(writer.bind("word", Call(writer.device("told"), (place, there))))
            number += 1
        value = _value(words, part.told)
        if part.told is not part.dtype:
            value = method(value, "to", get_triton_type(part.dtype))
        found.append(writer.bind("part", tl("where", there, value, free_constant(part.nothing, part.dtype))))
    if _can_reorder(site):
        return (_reduce_piece(site, writer, found[0]),)
    if site.kind == "prod":
        combine = writer.device(COMBINE[site.kind])
        products = writer.bind("products", tl("associative_scan", found[0], Number(0), combine))
        whole = select_element(products, Binary("==", lane, Number(lanes - 1)), site.dtype, 0, keep=False)
        return (writer.bind("before", whole),)
    if site.kind == "logcumsumexp":
        combine = writer.device(COMBINE[site.kind])
        return writer.bind_all(("before", "before"), tl("reduce", Tuple(tuple(found)), Number(0), combine))
    # of equal values the last one counts, which is in the nearest piece
    combine = writer.device("combine_argmin" if site.kind in ("min", "argmin") else "combine_argmax")
    value, nearest = writer.bind_all(
        ("before", "nearest"), tl("reduce", Tuple((found[0], lane)), Number(0), combine)
    )
    position = select_element(
        found[1], Binary("==", lane, nearest), _state_parts(site)[1].dtype, 0, keep=False
    )
    return (value, writer.bind("before", position))


def _bits(value: Expression, dtype: DType) -> tuple[Expression, ...]:
    """Integers of which the lower 32 bits, in turn, make up `value`."""
    if dtype.is_float:
        value = method(value, "to", tl_name(f"int{8 * dtype.itemsize}"), bitcast=Number(True))
    return (value,) if dtype.itemsize < 8 else (value, Binary(">>", value, Number(32)))


def _value(words: Sequence[Expression], dtype: DType) -> Expression:
    """Return the values of `dtype` whose bits `words` hold."""
    whole = words[0]
    if dtype.itemsize == 8:
        low, high = words
        whole = Binary("|", Binary("<<", high, Number(32)), Binary("&", low, Number(0xFFFFFFFF)))
    if dtype.is_float:
        if dtype.itemsize < 8:
            whole = method(whole, "to", tl_name(f"int{8 * dtype.itemsize}"))
        return method(whole, "to", get_triton_type(dtype), bitcast=Number(True))
    return method(whole, "to", get_triton_type(dtype))
