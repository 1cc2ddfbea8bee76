"""Loose views stand beside their region, and come back to where they were."""

from __future__ import annotations

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.loops import Extern, View
from coilwork_scheduler.loose_views import gather_views, spread_views


def buffer(name: str) -> Buffer:
    shape = (as_expr(4),)
    return Buffer(name=name, dtype=DType.F32, shape=shape, strides=make_contiguous_strides(shape))


def view(name: str, source: str) -> View:
    return View(output=buffer(name), source=source, offset=as_expr(0))


def call(name: str, *read: str) -> Extern:
    return Extern(
        target="aten.mm.default", args=tuple(Ref(one) for one in read), outputs=(buffer(name),), origins=()
    )


def test_views_move_to_their_readers_and_sources_and_back() -> None:
    steps = (
        *(view("v0", "w0"), view("v1", "w1")),
        *(call("a0", "x", "v0"), call("a1", "a0", "v1")),
        *(view("r1", "a1"), view("r0", "a0"), view("r", "x")),
    )
    mentions = [
        *(("v0", "w0"), ("v1", "w1"), ("x", "v0", "a0"), ("a0", "v1", "a1")),
        *(("r1", "a1"), ("r0", "a0"), ("r", "x")),
    ]
    known = {"v0", "v1", "a0", "a1", "r0", "r1", "r"}
    gathered = gather_views(steps, mentions, {"x", "w0", "w1"}, known)
    # views and calls, by their places in `steps`
    assert [steps.index(step) for step in gathered.steps] == [0, 2, 5, 1, 3, 4, 6]
    order = {name: number for number, name in enumerate(("v0", "v1", "a0", "a1", "r1", "r0", "r"))}
    assert spread_views(gathered.steps, range(len(steps)), gathered, order) == steps
