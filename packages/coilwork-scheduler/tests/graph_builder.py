"""Loop graphs in short, and the fixture's type that schedules and compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypedDict, Unpack

from declared import ScheduleFields

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Schedule
from coilwork_ir.loc import Origin
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Scalar, cast, load
from coilwork_ir.target import Target, Targets


class BufferFields(TypedDict, total=False):
    """What a buffer is said to be beside its name and shape."""

    dtype: DType
    strides: Sequence[Expr | int]
    device: str


class CallFields(TypedDict, total=False):
    """What is said of a call beside its operands and results."""

    binds: tuple[tuple[Expr, int, int], ...]
    effect: bool
    fresh: bool
    out_overload: str
    out_names: tuple[str, ...]
    random: bool


class Compare(Protocol):
    """Schedules a graph, runs both on made-up inputs, and compares everything."""

    def __call__(
        self,
        graph: Graph,
        *,
        name: str | Target | Targets = "sm_90",
        sizes: Mapping[str, int] = {},
        kept_bytes: int | None = None,
        **settings: Unpack[ScheduleFields],
    ) -> Schedule: ...


class Builder:
    """Shorthand for loop graphs: buffers are contiguous unless strides are given; shapes mix ints and
    symbols.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.inputs: list[Buffer] = []
        self.nodes: list[Node] = []

    def buffer(
        self,
        name: str,
        *shape: Expr | int,
        dtype: DType = DType.F64,
        strides: Sequence[Expr | int] = (),
        device: str = "cpu",
    ) -> Buffer:
        extents = tuple(as_expr(e) for e in shape)
        steps = tuple(as_expr(s) for s in strides) if strides else make_contiguous_strides(extents)
        self.buffers[name] = Buffer(name=name, dtype=dtype, shape=extents, strides=steps, device=device)
        return self.buffers[name]

    def input(self, name: str, *shape: Expr | int, **how: Unpack[BufferFields]) -> None:
        self.inputs.append(self.buffer(name, *shape, **how))

    def ranges(self, *extents: Expr | int, letter: str = "i") -> tuple[Expr, ...]:
        return tuple(symbol(f"{letter}{k}", extent=e) for k, e in enumerate(extents))

    def at(self, name: str, *index: Expr | int) -> Scalar:
        """A load, of narrow floats as f32."""
        dtype = self.buffers[name].dtype
        return cast(load(name, tuple(as_expr(i) for i in index), dtype), dtype.compute)

    def pointwise(
        self,
        name: str,
        shape: Sequence[Expr | int],
        body: Callable[..., Scalar],
        *,
        into: str | None = None,
        op: str = "",
        **how: Unpack[BufferFields],
    ) -> None:
        """`body` gets the ranges and may compute wider than the buffer is."""
        ranges = self.ranges(*shape)
        output = self.buffer(name, *shape, **how)
        value = cast(body(*ranges), output.dtype)
        origins = (Origin(node=name, op=op),) if op else ()
        self.nodes.append(Pointwise(output=output, ranges=ranges, body=value, into=into, origins=origins))

    def reduce(
        self,
        names: str | Sequence[str | None],
        kind: ReduceKind,
        shape: Sequence[Expr | int],
        axes: Sequence[Expr | int],
        body: Callable[..., Scalar],
        *,
        op: str = "",
        **how: Unpack[BufferFields],
    ) -> None:
        """`body` gets the ranges and then the axes."""
        kept, along = self.ranges(*shape), self.ranges(*axes, letter="r")
        listed = [names] if isinstance(names, str) else names
        outputs = tuple(None if n is None else self.buffer(n, *shape, **how) for n in listed)
        origins = (Origin(node=str(listed[0]), op=op),) if op else ()
        body_value = body(*kept, *along)
        self.nodes.append(
            Reduce(outputs=outputs, kind=kind, ranges=kept, axes=along, body=body_value, origins=origins)
        )

    def extern(
        self, target: str, inputs: Sequence[str], outputs: Sequence[Buffer], **how: Unpack[CallFields]
    ) -> None:
        self.nodes.append(
            Extern(target=target, args=tuple(Ref(n) for n in inputs), outputs=tuple(outputs), **how)
        )

    def graph(self, *outputs: str, symbols: Sequence[Expr] = ()) -> Graph:
        return Graph(
            name="g",
            symbols=tuple(symbols),
            inputs=tuple(self.inputs),
            nodes=tuple(self.nodes),
            outputs=tuple(Ref(name) for name in outputs),
        )
