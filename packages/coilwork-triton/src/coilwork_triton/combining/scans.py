"""How each kind of scan is written: within one block, and with a carried prefix over a loop.

A running log of a sum of exponentials is carried as two values, the largest so far and the sum of exponentials relative to it:
combining takes no logarithm, and one is taken per point when the scan is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.ops import ScanKind
from coilwork_triton.text.tree import Binary, Call, Expression, Name, Number, Tuple, method, tl, tl_name
from coilwork_triton.text.types import free_constant, largest, smallest, triton_type, zeros_of
from coilwork_triton.text.writer import Writer

# Kinds whose running value comes with its position; the others combine values alone.
_PAIRED: Final = frozenset({"min", "max", "argmin", "argmax"})
_COMBINE: Final[Mapping[str, str]] = MappingProxyType(
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


def scan_kinds() -> frozenset[str]:
    """The kinds this module can write."""
    return frozenset(_COMBINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSite:
    """One scan of a kernel: `value`, a block that spans the scan axis, `valid` where it lies in range.

    `positions` is a block of the same shape with the position along the axis; it is read by kinds that report one.
    """

    kind: ScanKind
    reverse: bool
    dtype: DType
    value: Expression
    valid: Expression | None
    shape: tuple[str, ...]
    axis: int
    positions: Expression
    index_dtype: DType

    @property
    def paired(self) -> bool:
        """Values are combined together with their positions."""
        return self.kind in _PAIRED

    @property
    def carry_shape(self) -> tuple[str, ...]:
        """Shape of the carried prefix: a scalar where blocks have no other axis."""
        if len(self.shape) == 1:
            return ()
        return (*self.shape[: self.axis], "1", *self.shape[self.axis + 1 :])


def identity(site: ScanSite) -> int | float | bool:
    """The value that changes nothing."""
    match site.kind:
        case "sum":
            return 0
        case "prod":
            return 1
        case "min" | "argmin":
            return largest(site.dtype)
        case "max" | "argmax" | "logcumsumexp":
            return smallest(site.dtype)


def _extents(shape: tuple[str, ...]) -> Expression:
    return Tuple(tuple(Number(1) if s == "1" else Name(s) for s in shape))


def block_scan(site: ScanSite, writer: Writer) -> tuple[Name, ...]:
    """The running value within the block, and its position for the kinds that have one."""
    return _results(site, writer, _block_state(site, writer))


def _results(site: ScanSite, writer: Writer, state: tuple[Name, ...]) -> tuple[Name, ...]:
    if site.kind != "logcumsumexp":
        return state
    largest, total = state
    log = Call(writer.device("log_of_normal"), (total,))
    return (writer.bind("running", Binary("+", largest, log)),)


def _block_state(site: ScanSite, writer: Writer) -> tuple[Name, ...]:
    """What is carried from point to point."""
    kept: Expression = site.value
    if site.valid is not None:
        # from the end, lanes out of range come first
        kept = tl("where", site.valid, kept, free_constant(identity(site), site.dtype))
    kept = tl("broadcast_to", kept, _extents(site.shape))
    backwards = (("reverse", Number(True)),) if site.reverse else ()
    if site.paired:
        writer.device(_COMBINE[site.kind])
        if site.dtype.is_bool:
            kept = method(kept, "to", tl_name("int32"))
        both = Tuple((kept, tl("broadcast_to", site.positions, _extents(site.shape))))
        found = Call(
            tl_name("associative_scan"), (both, Number(site.axis), Name(_COMBINE[site.kind])), backwards
        )
        return writer.bind_all(("running", "position"), found)
    if site.kind == "logcumsumexp":
        # the device function finds its way of combining by name
        sums = Call(writer.device("running_logsumexp"), (kept, Number(site.axis), Number(site.reverse)))
        return writer.bind_all(("largest", "total"), sums)
    if site.kind == "sum":
        running: Expression = Call(tl_name("cumsum"), (kept, Number(site.axis)), backwards)
        if site.dtype.is_integer and site.dtype.itemsize < 4:
            running = method(running, "to", triton_type(site.dtype))
    else:
        combine = writer.device(_COMBINE[site.kind])
        running = Call(tl_name("associative_scan"), (kept, Number(site.axis), combine), backwards)
    return (writer.bind("running", running),)


def start_carry(site: ScanSite, writer: Writer) -> tuple[Name, ...]:
    """The prefix of nothing, before the loop."""
    dtype = DType.I32 if site.dtype.is_bool and site.paired else site.dtype
    first = writer.bind("carry", zeros_of(site.carry_shape, identity(site), dtype))
    if site.kind == "logcumsumexp":
        return (first, writer.bind("carry_total", zeros_of(site.carry_shape, 0, dtype)))
    if not site.paired:
        return (first,)
    return (first, writer.bind("carry_position", zeros_of(site.carry_shape, 0, site.index_dtype)))


def carried_scan(
    site: ScanSite, writer: Writer, carry: tuple[Name, ...], edge: Expression
) -> tuple[Name, ...]:
    """One step of a looped scan: the block's scan after the prefix `carry`, which is moved past the block.

    `edge` is true in the lane that holds the block's last value in scan order.
    """
    local = _block_state(site, writer)
    if site.kind == "sum":
        found: tuple[Name, ...] = (writer.bind("running", Binary("+", carry[0], local[0])),)
    else:
        merged = Call(writer.device(_COMBINE[site.kind]), (*carry, *local))
        stems = ("largest", "total") if site.kind == "logcumsumexp" else ("running", "position")
        found = writer.bind_all(stems, merged) if len(local) > 1 else (writer.bind(stems[0], merged),)
    types = (site.dtype, site.dtype if site.kind == "logcumsumexp" else site.index_dtype)
    for old, new, dtype in zip(carry, found, types):
        writer.assign((old,), _picked(site, new, edge, dtype))
    return _results(site, writer, found)


def _picked(site: ScanSite, value: Expression, edge: Expression, dtype: DType) -> Expression:
    # one lane survives, so a maximum against the smallest value would do; a sum of zeros keeps NaN and infinity too
    zero = tl("zeros_like", value)
    args = (tl("where", edge, value, zero), Number(site.axis))
    kwargs = (("keep_dims", Number(True)),) if len(site.shape) > 1 else ()
    total: Expression = Call(tl_name("sum"), args, kwargs)
    if dtype.is_integer and dtype.itemsize < 4:
        total = method(total, "to", triton_type(dtype))
    return total
