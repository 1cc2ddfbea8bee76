"""Random graphs give the same numbers before and after scheduling, whatever the target and options."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from graph_builder import Compare
from known_values import number_of

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern, Graph, Mutation, Node, Pointwise, Reduce, Scan, Scatter, Sort, View
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, placeholder, where

SHAPES = ((4, 6), (6, 4), (24,), (2, 12), (4,), (6,), (2, 2, 6), (4, 1, 6), (4, 4), (0, 4))
FLOAT = DType.F64


class Maker:
    """Builds one random graph that keeps the rules of the loop IR."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.count = 0
        self.live: dict[str, Buffer] = {}
        self.root: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.inputs = tuple(self.buffer(shape) for shape in ((4, 6), (24,), (6,), (4, 4)))
        self.table = Buffer(name="table", dtype=DType.I64, shape=(as_expr(6),), strides=(as_expr(1),))

    def buffer(self, shape: tuple[int, ...], dtype: DType = FLOAT) -> Buffer:
        extents = tuple(as_expr(e) for e in shape)
        strides = make_contiguous_strides(extents)
        if len(shape) == 2 and self.rng.random() < 0.2:
            strides = (as_expr(1), extents[0])
        self.count += 1
        made = Buffer(name=f"b{self.count}", dtype=dtype, shape=extents, strides=strides)
        self.live[made.name] = made
        self.root[made.name] = made.name
        return made

    def forget(self, root: str) -> None:
        for name in [n for n in self.live if self.root[n] == root]:
            del self.live[name]

    def access(self, ranges: tuple[Expr, ...]) -> Scalar:
        """A load of some live buffer at coordinates that stay inside it."""
        rng = self.rng
        extents = [number_of(r.extent) for r in ranges]
        name = rng.choice(sorted(self.live))
        source = self.live[name]
        shape = [e.value for e in source.shape]
        if 0 in shape or 0 in extents:
            return const(1.5, FLOAT)
        if shape == extents and rng.random() < 0.7:
            return load(name, ranges, FLOAT)
        if sorted(shape) == sorted(extents) and len(shape) == 2 and shape == extents[::-1]:
            return load(name, ranges[::-1], FLOAT)
        flat: Expr = as_expr(0)
        count = 1
        for r, extent in zip(ranges, extents, strict=True):
            flat = flat * extent + r
            count *= extent
        size = 1
        for e in shape:
            size *= e
        choice = rng.random()
        if choice < 0.2 and shape:
            # looked up: the table's values are below 4
            position = load("table", (flat % 6,), DType.I64)
            index = [as_expr(0)] * len(shape)
            at = rng.randrange(len(shape))
            if shape[at] >= 4:
                index[at] = placeholder(0)
                return load(name, index, FLOAT, indirect=(position,))
        if choice < 0.5 and shape:
            # masked: only where the flat position is inside
            shift = rng.randrange(0, 3)
            shifted = index_value(flat + shift)
            inside = op("lt", shifted, const(size, DType.I64))
            return load(name, self.unflatten(flat + shift, shape), FLOAT, mask=inside, other=0.25)
        wrapped = flat if size == count else flat % size
        return load(name, self.unflatten(wrapped, shape), FLOAT)

    def unflatten(self, flat: Expr, shape: list[int]) -> list[Expr]:
        index: list[Expr] = []
        for position, extent in enumerate(reversed(shape)):
            index.append(flat if position == len(shape) - 1 else flat % extent)
            flat = flat // extent
        return index[::-1]

    def body(self, ranges: tuple[Expr, ...]) -> Scalar:
        rng = self.rng
        value = self.access(ranges)
        for _ in range(rng.randrange(3)):
            value = op(rng.choice(("add", "sub", "mul", "maximum")), value, self.access(ranges))
        if rng.random() < 0.3:
            value = op("tanh", value)
        if rng.random() < 0.2 and ranges:
            value = where(op("lt", index_value(ranges[-1]), const(2, DType.I64)), value, const(0.5, FLOAT))
        return value

    def ranges(self, shape: tuple[int, ...], letter: str = "i") -> tuple[Expr, ...]:
        return tuple(symbol(f"{letter}{k}", extent=extent) for k, extent in enumerate(shape))

    def step(self) -> None:
        rng = self.rng
        choice = rng.random()
        shape: tuple[int, ...] = rng.choice(SHAPES)
        ranges = self.ranges(shape)
        if choice < 0.5:
            body = self.body(ranges)
            self.nodes.append(Pointwise(output=self.buffer(shape), ranges=ranges, body=body))
        elif choice < 0.7:
            cut = rng.randrange(len(shape) + 1)
            kind: ReduceKind = (
                rng.choice(("sum", "welford")) if 0 in shape else rng.choice(("sum", "max", "welford", "sum"))
            )
            if 0 in shape:
                kind = "sum"
            kept, axes = self.ranges(shape[:cut]), self.ranges(shape[cut:], "r")
            body = self.body((*kept, *axes))
            if rng.random() < 0.3:
                kept, axes = self.ranges(shape[cut:]), self.ranges(shape[:cut], "r")
                body = self.body((*axes, *kept))
                shape = shape[cut:]
            else:
                shape = shape[:cut]
            outputs = (self.buffer(shape), self.buffer(shape)) if kind == "welford" else (self.buffer(shape),)
            self.nodes.append(Reduce(outputs=outputs, kind=kind, ranges=kept, axes=axes, body=body))
        elif choice < 0.8:
            self.overwrite()
        elif choice < 0.84:
            self.scatter()
        elif choice < 0.86:
            self.fill()
        elif choice < 0.96:
            self.extern()
        elif ranges and 0 not in shape:
            body = self.body(ranges)
            self.nodes.append(
                Scan(outputs=(self.buffer(shape),), kind="sum", ranges=ranges, axis=ranges[-1], body=body)
            )

    def sort(self) -> None:
        rng = self.rng
        shape = rng.choice([s for s in SHAPES if len(s) and 0 not in s])
        ranges = self.ranges(shape)
        axis = rng.randrange(len(shape))
        count = rng.choice((None, rng.randint(1, shape[axis])))
        kept = (*shape[:axis], shape[axis] if count is None else count, *shape[axis + 1 :])
        body = cast(self.body(ranges), DType.F32)
        values, places = self.buffer(kept, DType.F32), self.buffer(kept, DType.I64)
        wanted = rng.choice((None, places))
        self.nodes.append(
            Sort(
                outputs=(values, wanted),
                ranges=ranges,
                axis=ranges[axis],
                body=body,
                count=None if count is None else as_expr(count),
                descending=rng.random() < 0.5,
            )
        )
        # what other nodes read is wide
        del self.live[values.name], self.live[places.name]
        for made in (values, places):
            if made is not places or wanted is not None:
                point = self.ranges(kept)
                body = cast(load(made.name, point, made.dtype), FLOAT)
                self.nodes.append(Pointwise(output=self.buffer(kept), ranges=point, body=body))

    def overwrite(self) -> None:
        old = self.live[self.rng.choice(sorted(self.live))]
        ranges = tuple(symbol(f"i{k}", extent=e) for k, e in enumerate(old.shape))
        body = self.body(ranges)
        if self.rng.random() < 0.6:
            body = op("add", body, load(old.name, ranges, FLOAT))
        root = self.root[old.name]
        self.forget(root)
        new = Buffer(name=f"m{self.count}", dtype=FLOAT, shape=old.shape, strides=old.strides)
        self.count += 1
        self.live[new.name], self.root[new.name] = new, root
        self.nodes.append(Pointwise(output=new, ranges=ranges, body=body, into=old.name))

    def scatter(self) -> None:
        names = [n for n, b in self.live.items() if len(b.shape) == 1 and b.shape[0].value >= 4]
        if not names:
            return
        old = self.live[self.rng.choice(sorted(names))]
        ranges = self.ranges((6,))
        value = self.body(ranges)
        position = load("table", ranges, DType.I64)
        root = self.root[old.name]
        self.forget(root)
        new = Buffer(name=f"m{self.count}", dtype=FLOAT, shape=old.shape, strides=old.strides)
        self.count += 1
        self.live[new.name], self.root[new.name] = new, root
        self.nodes.append(
            Scatter(
                output=new,
                into=old.name,
                ranges=ranges,
                index=(placeholder(0),),
                indirect=(position,),
                value=value,
                mode="add",
            )
        )

    def fill(self) -> None:
        """A buffer that several nodes fill, one band of rows each, with other nodes in between."""
        cuts = sorted({0, *self.rng.choices(range(1, 6), k=2), 6})
        old: Buffer | None = None
        for start, end in pairwise(cuts):
            for _ in range(self.rng.randrange(2)):
                self.step()
            ranges = self.ranges((end - start, 4))
            value = self.body(ranges)
            new = self.buffer((6, 4)) if old is None else replace(old, name=f"f{len(self.nodes)}")
            # nobody reads it before it is full
            self.live.pop(new.name, None)
            self.nodes.append(
                Scatter(
                    output=new,
                    into=None if old is None else old.name,
                    ranges=ranges,
                    index=(ranges[0] + start, ranges[1]),
                    indirect=(),
                    value=value,
                    mode="store",
                )
            )
            old = new
        assert old is not None
        self.live[old.name] = old
        self.root[old.name] = old.name

    def extern(self) -> None:
        rng = self.rng
        source = self.live[rng.choice(sorted(self.live))]
        shape = tuple(e.value for e in source.shape)
        kind = rng.random()
        if kind < 0.35:
            self.nodes.append(
                Extern(target="test.neg", args=(Ref(source.name),), outputs=(self.buffer(shape),))
            )
        elif kind < 0.55:
            root = self.root[source.name]
            self.forget(root)
            new = Buffer(name=f"m{self.count}", dtype=FLOAT, shape=source.shape, strides=source.strides)
            self.count += 1
            self.live[new.name], self.root[new.name] = new, root
            change = Mutation(output=new, source=source.name)
            self.nodes.append(
                Extern(target="test.double_", args=(Ref(source.name),), outputs=(), mutates=(change,))
            )
        elif kind < 0.8:
            made = self.buffer(rng.choice(SHAPES[:6]))
            self.nodes.append(Extern(target=f"test.draw{self.count}", args=(), outputs=(made,), random=True))
        elif shape and shape[0] > 1:
            # all but the first row
            view = Buffer(
                name=f"v{self.count}",
                dtype=FLOAT,
                shape=(as_expr(shape[0] - 1), *source.shape[1:]),
                strides=source.strides,
            )
            self.count += 1
            self.live[view.name], self.root[view.name] = view, self.root[source.name]
            self.nodes.append(View(output=view, source=source.name, offset=source.strides[0]))

    def graph(self, steps: int) -> Graph:
        for _ in range(steps):
            self.step()
        names = sorted(self.live)
        wanted = self.rng.sample(names, min(4, len(names)))
        return Graph(
            name="random",
            inputs=(*self.inputs, self.table),
            nodes=tuple(self.nodes),
            outputs=tuple(Ref(name) for name in wanted),
        )


@pytest.mark.parametrize("seed", range(60))
def test_scheduling_keeps_the_numbers(seed: int, compare: Compare) -> None:
    compare(Maker(seed).graph(4 + seed % 17), name=("sm_90", "x86-64-avx2")[seed % 2])


@pytest.mark.parametrize("seed", range(60, 80))
def test_buffers_filled_part_by_part_keep_the_numbers(seed: int, compare: Compare) -> None:
    maker = Maker(seed)
    maker.step()
    maker.fill()
    maker.fill()
    made = compare(maker.graph(6), name=("sm_90", "x86-64-avx2")[seed % 2])
    verify_schedule(made)


@pytest.mark.parametrize("seed", range(300, 340))
def test_sorts_among_others_keep_the_numbers(seed: int, compare: Compare) -> None:
    maker = Maker(seed)
    maker.step()
    for _ in range(4):
        maker.sort()
        maker.step()
    verify_schedule(compare(maker.graph(4), name="sm_90"))


@pytest.mark.parametrize("seed", range(100, 115))
def test_scheduling_without_fusion_keeps_the_numbers(seed: int, compare: Compare) -> None:
    compare(Maker(seed).graph(10), inline=False, fuse=False)


@pytest.mark.parametrize("seed", range(200, 220))
def test_fusion_alone_keeps_the_numbers(seed: int, compare: Compare) -> None:
    compare(Maker(seed).graph(14), inline=False)
