"""What memory gives for a stored value that its reader goes through several times, as one that is broadcast
along an outer range.
"""

from __future__ import annotations

from coilwork_ir.index import Expr, extent_of
from coilwork_ir.loops import Reduce
from coilwork_ir.loops.access import bodies
from coilwork_ir.scalar import loads, range_symbols
from coilwork_scheduler.inlining.growth import Computation
from coilwork_scheduler.sizes import SizeHints


def read_bytes(reader: Computation, name: str, size: int, sizes: SizeHints, resident: int) -> int:
    """Bytes of the buffer `name`, which has `size` of them, that `reader` takes from memory.

    What lies inside of a range along which it is the same is read again for each of its points, unless the
    `resident` bytes of a cache hold it.
    """
    ranges: tuple[Expr, ...] = reader.ranges + (reader.axes if isinstance(reader, Reduce) else ())
    most = size
    if size <= resident:
        return size
    for access in loads(bodies(reader)):
        if access.buffer != name:
            continue
        used = range_symbols((access,))
        points = max(sizes.numel(tuple(extent_of(r) for r in ranges if r in used)), 1)
        share = size / points
        inside, times = share, 1
        for r in reversed(ranges):
            count = max(sizes.value(extent_of(r)), 1)
            if r in used:
                inside *= count
            elif inside > resident:
                times *= count
        most = max(most, round(inside) * times)
    return most
