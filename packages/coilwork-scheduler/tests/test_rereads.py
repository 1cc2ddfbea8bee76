"""Values that are broadcast along an outer range: stored, they are read from memory again and again if no
cache holds them.
"""

from __future__ import annotations

import pytest
from declared import schedule

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import KernelCall
from coilwork_ir.scalar import cast, index_value, op
from coilwork_ir.target import target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.cost_model import hints_of
from coilwork_scheduler.inlining.inlining_cost import read_bytes

F32 = DType.F32
SIZES = hints_of(ScheduleOptions())
EXTENTS = {"b": 4, "i": 6, "j": 12}


@pytest.mark.parametrize(
    ("used", "resident", "times"),
    [
        ("ij", 287, 4),
        ("ij", 288, 1),
        ("bj", 47, 6),
        ("bj", 48, 1),
        ("bi", 4, 1),
        ("j", 47, 24),
        ("bij", 4, 1),
    ],
)
def test_what_lies_inside_of_a_repetition_is_read_again_unless_held(build, used, resident, times):
    """Along all of `b`, `i` and `j`, in this order, an element at some of them is read."""
    shape = [EXTENTS[name] for name in used]
    build.input("x", *shape, dtype=F32)

    def body(*point):
        place = dict(zip(EXTENTS, point, strict=True))
        return build.at("x", *(place[name] for name in used))

    build.pointwise("y", list(EXTENTS.values()), body, dtype=F32)
    (node,) = build.graph("y").nodes
    size = 4
    for extent in shape:
        size *= extent
    assert read_bytes(node, "x", size, SIZES, resident) == size * times


def test_distances_between_tokens_are_computed_for_every_batch(build):
    """Attention scores of 4 batches and 16 heads with a bias by distance: it is 134 MB, and some
    operations.
    """
    at = build.at
    build.input("scores", 4, 16, 2048, 2048, dtype=DType.BF16)
    build.input("slope", 16, dtype=F32)

    def bias(h, i, j):
        distance = op("abs", cast(op("sub", index_value(i), index_value(j)), F32))
        return cast(op("mul", op("mul", distance, distance), at("slope", h)), DType.BF16)

    build.pointwise("bias", [16, 2048, 2048], bias, dtype=DType.BF16)

    def exponential(b, h, i, j):
        score, bias = (cast(v, F32) for v in (at("scores", b, h, i, j), at("bias", h, i, j)))
        return op("exp", op("sub", score, bias))

    build.reduce("y", "sum", [4, 16, 2048], [2048], exponential, dtype=F32)
    made = schedule(build.graph("y"), target("sm_90"))
    calls = [step for step in made.steps if isinstance(step, KernelCall)]
    assert not any("bias" in call.args for call in calls)
