"""Scans whose rows programs share: each tells the others of its piece, and combines its piece with what those
before it tell.

What a piece combines to is told as soon as it is known. The pieces before are then asked for at once, one per
lane, the nearest in the first; lanes without a piece hold what changes nothing. They are combined in one
order, whichever came first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Combine
from coilwork_ir.syntax.python import Binary, Call, Expression, Name, Number, Tuple, method
from coilwork_triton.combining.scans import (
    COMBINE,
    ScanSite,
    identity,
    kept_values,
    last_of,
    merged,
    picked,
    results_of,
    scanned,
    types_of,
)
from coilwork_triton.iteration.shape import PIECE, Sharing
from coilwork_triton.launch.parameters import next_power_of_two
from coilwork_triton.text.language import tl, tl_name
from coilwork_triton.text.types import free_constant, triton_type
from coilwork_triton.text.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One of the values of `dtype` that are carried from point to point, told as `told`; `nothing` changes
    nothing.
    """

    dtype: DType
    told: DType
    nothing: int | float | bool


def _parts(site: ScanSite) -> tuple[_Part, ...]:
    first, second = types_of(site)
    value = _Part(dtype=first, told=first, nothing=identity(site))
    if site.paired:
        # positions in a row fit 32 bits
        return (value, _Part(dtype=second, told=DType.I32, nothing=0))
    if site.kind == "logcumsumexp":
        return (value, _Part(dtype=second, told=second, nothing=0))
    return (value,)


def shared_scan(site: ScanSite, sharing: Sharing, first: int, block: str, writer: Writer) -> tuple[Name, ...]:
    """The running value of the program's piece, after those before it; its words begin with number `first`.
    `block` is a piece's length.
    """
    kept = tuple(writer.bind("kept", value) for value in kept_values(site))
    early = _in_any_order(site)
    if early:
        _tell(site, sharing, first, (_combined(site, writer, kept[0]),), writer)
    local = scanned(site, writer, kept, site.axis)
    if not early:
        edge = last_of(Name(block), site)
        whole = tuple(
            writer.bind("whole", picked(v, edge, part.dtype, site.axis, keep=False))
            for v, part in zip(local, _parts(site), strict=True)
        )
        _tell(site, sharing, first, whole, writer)
    before = _before(site, sharing, first, writer)
    return results_of(site, writer, merged(site, writer, before, local))


def _in_any_order(site: ScanSite) -> bool:
    """Tell if values may be combined in any order: of floats, products of points that do not lie together may
    leave the range.
    """
    return site.kind == "sum" or (site.kind == "prod" and site.dtype.is_integer)


def _combined(site: ScanSite, writer: Writer, values: Expression) -> Name:
    """All of `values`, of a kind for which their order does not matter."""
    if site.kind == "sum":
        found: Expression = tl("sum", values, Number(0))
    else:
        assert not isinstance(site.kind, Combine)
        found = tl("reduce", values, Number(0), writer.device(COMBINE[site.kind]))
    if site.dtype.is_integer and site.dtype.itemsize < 4:
        found = method(found, "to", triton_type(site.dtype))
    return writer.bind("whole", found)


def _tell(site: ScanSite, sharing: Sharing, first: int, whole: Sequence[Expression], writer: Writer) -> None:
    """Tell the other programs what the piece combines to."""
    number = first
    for value, part in zip(whole, _parts(site), strict=True):
        for bits in _bits(value, part.told):
            writer.do(Call(writer.device("tell"), (Binary("+", sharing.word(number), PIECE), bits)))
            number += 1


def _before(site: ScanSite, sharing: Sharing, first: int, writer: Writer) -> tuple[Expression, ...]:
    """Return what the pieces before combine to."""
    lanes = next_power_of_two(sharing.count)
    if site.kind == "prod" and not _in_any_order(site):
        # what is scanned has a lane for every thread, or Triton's scans mix up copies
        lanes = max(lanes, next_power_of_two(sharing.most_threads))
    lane = writer.bind("lane", tl("arange", Number(0), Number(lanes)))
    earlier = writer.bind("earlier", Binary("-", Binary("-", PIECE, Number(1)), lane))
    there = writer.bind("there", Binary(">=", earlier, Number(0)))
    number = first
    found: list[Name] = []
    for part in _parts(site):
        words = []
        for _ in range(-(-part.told.itemsize // 4)):
            place = Binary("+", sharing.word(number), earlier)
            words.append(writer.bind("word", Call(writer.device("told"), (place, there))))
            number += 1
        value = _value(words, part.told)
        if part.told is not part.dtype:
            value = method(value, "to", triton_type(part.dtype))
        found.append(writer.bind("part", tl("where", there, value, free_constant(part.nothing, part.dtype))))
    if _in_any_order(site):
        return (_combined(site, writer, found[0]),)
    if site.kind == "prod":
        combine = writer.device(COMBINE[site.kind])
        products = writer.bind("products", tl("associative_scan", found[0], Number(0), combine))
        whole = picked(products, Binary("==", lane, Number(lanes - 1)), site.dtype, 0, keep=False)
        return (writer.bind("before", whole),)
    if site.kind == "logcumsumexp":
        combine = writer.device(COMBINE[site.kind])
        return writer.bind_all(("before", "before"), tl("reduce", Tuple(tuple(found)), Number(0), combine))
    # of equal values the last one counts, which is in the nearest piece
    combine = writer.device("combine_argmin" if site.kind in ("min", "argmin") else "combine_argmax")
    value, nearest = writer.bind_all(
        ("before", "nearest"), tl("reduce", Tuple((found[0], lane)), Number(0), combine)
    )
    position = picked(found[1], Binary("==", lane, nearest), _parts(site)[1].dtype, 0, keep=False)
    return (value, writer.bind("before", position))


def _bits(value: Expression, dtype: DType) -> tuple[Expression, ...]:
    """Integers of which the lower 32 bits, in turn, make up `value`."""
    if dtype.is_float:
        value = method(value, "to", tl_name(f"int{8 * dtype.itemsize}"), bitcast=Number(True))
    return (value,) if dtype.itemsize < 8 else (value, Binary(">>", value, Number(32)))


def _value(words: Sequence[Expression], dtype: DType) -> Expression:
    """The values of `dtype` whose bits `words` hold."""
    whole = words[0]
    if dtype.itemsize == 8:
        low, high = words
        whole = Binary("|", Binary("<<", high, Number(32)), Binary("&", low, Number(0xFFFFFFFF)))
    if dtype.is_float:
        if dtype.itemsize < 8:
            whole = method(whole, "to", tl_name(f"int{8 * dtype.itemsize}"))
        return method(whole, "to", triton_type(dtype), bitcast=Number(True))
    return method(whole, "to", triton_type(dtype))
