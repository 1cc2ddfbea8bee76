"""The graph under construction: its declarations, nodes and reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch

from coilwork_ir.buffers import (
    Buffer,
    DeviceValue,
    Ref,
    SymbolOutput,
    list_references,
    make_contiguous_strides,
)
from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, measure_tree, symbol
from coilwork_ir.inflight_memory import InFlight
from coilwork_ir.loc import Origin
from coilwork_ir.loops import Check, Extern, Node, Pointwise, Scatter, View
from coilwork_ir.loops import Reduce as ReduceNode
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.machine import MachineModel
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Const, Literal_, Load, Scalar, const, iterate_postorder, load
from coilwork_lowering.building.buffers import Alias, Buffers
from coilwork_lowering.building.cross_device_values import move_scalars_to_reader, recompute_without_memory
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.size_table import SizeTable
from coilwork_lowering.building.values import (
    Shape,
    TensorValue,
    Value,
    are_same_strides,
    find_layout,
    format_device,
    get_dtype,
    is_whole,
    make_coordinate_symbols,
    make_whole_value,
)
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.options import LoweringOptions

_READ_NUMBER: Final = "aten._local_scalar_dense.default"
Body = Callable[[tuple[Expr, ...]], Scalar]


class Builder:
    """Collects nodes in order. One builder makes one graph; nested graphs have builders of their own.

    `origins` and `hint` (a name for new buffers) describe the FX node being lowered; the driver sets them.
    """

    def __init__(self, *, options: LoweringOptions, sizes: SizeTable) -> None:
        self.options = options
        self.sizes = sizes
        self.nodes: list[Node] = []
        self.origins: tuple[Origin, ...] = ()
        self.hint = "buf"
        self.buffers = Buffers()
        # buffers that hold one number everywhere
        self._filled: dict[str, Const] = {}
        # declared, but made by no node so far
        self._unfilled: set[str] = set()
        # what random numbers are made from, per device, and how many operators have made some: dropouts,
        # others
        self.seeds: dict[str, TensorValue] = {}
        self.dropouts = 0
        self.streams = 0
        # sizes that the program computes, what they are, and from which node on
        self._sizes_read: list[tuple[int, Expr, Scalar]] = []
        # whether numbers were read from tensors, which may be computed with elsewhere
        self.reads_numbers = False
        self._made: dict[tuple[str, Shape, tuple[Expr, ...], DType, Expr], Buffer] = {}
        # memory that operators use after their calls have returned, by root; what was waited for since;
        # what may be kept
        self.in_flight: InFlight[str] = InFlight()
        self.at_rest: set[str] = set()
        self.retained: set[str] = set()
        # inputs that lie otherwise than captured: saved tensors, as the forward graph chose
        self.relaid_inputs: set[str] = set()
        # views that were laid out in memory, and why
        self.copies: list[str] = []
        # copies of buffers on other devices
        self._copies: dict[tuple[str, str], Buffer] = {}

    # declarations

    def machine_of(self, device: str) -> MachineModel:
        """Return the measured figures of `device`."""
        return self.options.find_model(device)

    def declare(
        self,
        shape: Shape,
        dtype: DType,
        device: str,
        *,
        strides: Sequence[Expr] | None = None,
        name: str = "",
    ) -> Buffer:
        """Return a new buffer, row-major unless `strides` are given."""
        buffer = Buffer(
            name=self.buffers.make_name(name or self.hint),
            dtype=dtype,
            shape=shape,
            strides=make_contiguous_strides(shape) if strides is None else tuple(strides),
            device=device,
        )
        self.buffers.declare(buffer)
        return buffer

    def declare_successor(self, old: Buffer) -> Buffer:
        """Return the buffer that stands for the memory of `old` once it is overwritten."""
        new = replace(old, name=self.buffers.make_successor_name(old.name))
        self.buffers.declare(new)
        return new

    def declare_like(self, fake: torch.Tensor, *, name: str = "") -> Buffer:
        """Return a new buffer with the type, shape, strides and device of a fake tensor."""
        return self.declare(
            self.sizes.exprs(fake.shape),
            get_dtype(fake.dtype),
            format_device(fake.device),
            strides=self.result_strides(fake),
            name=name,
        )

    def result_strides(self, fake: torch.Tensor) -> tuple[Expr, ...]:
        """Return the strides that a freshly computed `fake` gets: its own, or row-major if elements
        would overlap.
        """
        shape, strides = self.sizes.exprs(fake.shape), self.sizes.exprs(fake.stride())
        overlaps = any(as_int(s) == 0 and as_int(e) != 1 for e, s in zip(shape, strides, strict=True))
        return make_contiguous_strides(shape) if overlaps else strides

    def mark(self) -> int:
        """Return a point to `rewind` to."""
        return len(self.nodes)

    def rewind(self, mark: int) -> None:
        """Forget the nodes since `mark`, none of which may have overwritten memory; their names stay used."""
        for position, size, number in self._sizes_read:
            if position >= mark:
                self.sizes.undefine(size, number)
        self._sizes_read = [read for read in self._sizes_read if read[0] < mark]
        forgotten = {
            buffer.name
            for node in self.nodes[mark:]
            if isinstance(node, View | Extern)
            for buffer in list_defined_buffers(node)
        }
        if forgotten:
            self._made = {key: made for key, made in self._made.items() if made.name not in forgotten}
            self._copies = {key: made for key, made in self._copies.items() if made.name not in forgotten}
            self.seeds = {key: seed for key, seed in self.seeds.items() if seed.buffer.name not in forgotten}
        del self.nodes[mark:]

    # reads

    def current(self, value: TensorValue) -> TensorValue:
        """`value` as its memory is now: the same one unless that memory was overwritten since."""
        if not self.buffers.is_stale(value.buffer.name):
            return value
        return TensorValue(buffer=self._renew_buffer(value.buffer.name), shape=value.shape, index=value.index)

    def _renew_buffer(self, name: str) -> Buffer:
        stale: list[tuple[Buffer, Alias]] = []
        newest = self.buffers.latest(name)
        while (alias := self.buffers.alias(newest)) is not None and self.buffers.is_stale(alias.source):
            stale.append((newest, alias))
            newest = self.buffers.latest(alias.source)
        for old, alias_of_old in reversed(stale):
            newest = self._view(
                newest.name, old.shape, old.strides, old.dtype, alias_of_old.offset, old.device
            )
            self.buffers.overwrite(old.name, newest)
        return newest

    def number_everywhere(self, value: TensorValue) -> Const | None:
        """Return the number that every element of `value` is, where a node of this graph filled its
        memory with one.
        """
        return self._filled.get(self.current(value).buffer.name)

    def read(
        self,
        value: TensorValue,
        coordinates: Sequence[Expr],
        *,
        indirect: Sequence[Scalar] = (),
        mask: Scalar | None = None,
        other: Literal_ = 0,
    ) -> Scalar:
        """Return the element of `value` at `coordinates`, in memory's type."""
        value = self.current(value)
        index = value.get_coordinates(coordinates)
        return load(value.buffer.name, index, value.dtype, indirect=indirect, mask=mask, other=other)

    def read_broadcast(self, value: TensorValue, coordinates: Sequence[Expr]) -> Scalar:
        """Return the element of `value`, expanded to the rank of `coordinates`."""
        own = coordinates[len(coordinates) - len(value.shape) :] if value.shape else ()
        return self.read(value, own)

    def store_number(self, number: Scalar) -> TensorValue:
        """`number` in a tensor of no dimensions, where what it is computed from is."""
        devices = [self.buffers[v.buffer].device for v in iterate_postorder((number,)) if isinstance(v, Load)]
        return self.pointwise((), number.dtype, devices[0] if devices else "cpu", lambda point: number)

    # nodes

    def add(self, node: Node) -> None:
        """Append `node`, and before it what computes the sizes that it mentions first."""
        self.define_sizes()
        if self.reads_numbers:
            node = move_scalars_to_reader(node, lambda name: self.buffers[name].device, self._move_number)
        self.nodes.append(node)
        self.buffers.note(node)
        if isinstance(node, Scatter):
            self._unfilled.discard(node.output.name)
        if isinstance(node, Extern):
            self._unfilled.difference_update(o.name for o in node.outputs if isinstance(o, Buffer))
            self._follow_flights(node)

    def _follow_flights(self, call: Extern) -> None:
        root = self.buffers.root
        if call.waits:
            waited = tuple(map(root, call.waits))
            self.in_flight.wait(waited)
            self.at_rest.update(waited)
        if call.in_flight:
            until = tuple(map(root, call.until))
            self.in_flight.start(map(root, call.in_flight), until)
            self.at_rest.difference_update(until)
        if call.retains:
            named = (*call.args, *(value for _, value in call.kwargs))
            self.retained.update(root(name) for value in named for name in list_references(value))

    def define_sizes(self) -> None:
        """Append what computes the sizes without an integer form that were met since."""
        for size, number in self.sizes.take_undefined():
            self._sizes_read.append((len(self.nodes), size, number))
            self._read_size(size, number)

    def _move_number(self, name: str, device: str) -> Buffer:
        return self.move_to(make_whole_value(self.buffers[name]), device).buffer

    def _read_size(self, size: Expr, number: Scalar) -> None:
        stored = self.pointwise((), number.dtype, "cpu", lambda point: number, name=size.name)
        self.nodes.append(self._read_by_call(stored, size))

    def _read_by_call(self, value: TensorValue, size: Expr) -> Extern:
        return Extern(
            target=_READ_NUMBER,
            args=(Ref(value.buffer.name),),
            outputs=(SymbolOutput(symbol=size),),
            origins=self.origins,
        )

    def read_integer(self, value: TensorValue, fake: torch.SymInt) -> Expr:
        """Append what reads the integer in a tensor of no dimensions, which torch calls `fake`.

        Raises:
            LoweringError[symbol]: that is no symbol of its own.
        """
        number = self.sizes.expr(fake)
        if not number.is_symbol:
            raise LoweringError("symbol", f"a number that a region carries is {number}", origins=self.origins)
        self.add(self._read_by_call(value, number))
        self.sizes.note_data_dependent(number)
        return number

    def pointwise(
        self,
        shape: Shape,
        dtype: DType,
        device: str,
        body: Body,
        *,
        strides: Sequence[Expr] | None = None,
        checks: Callable[[tuple[Expr, ...]], Sequence[Check]] | None = None,
        into: Buffer | None = None,
        name: str = "",
    ) -> TensorValue:
        """Append `output[i] = body(i)`; `into` names memory to take over (its layout then is the
        output's).
        """
        ranges = make_node_ranges("i", shape)
        point = make_coordinate_symbols("i", shape)
        target_strides = into.strides if into is not None else strides
        # a domain without points computes nothing, and its coordinates may make no sense
        empty = any(as_int(extent) == 0 for extent in shape)
        scalar = const(0, dtype) if empty else simplify(body(point))
        conditions = tuple(checks(point)) if checks is not None and self.options.checks and not empty else ()
        output = self.declare(shape, dtype, device, strides=target_strides, name=name)
        if isinstance(scalar, Const):
            self._filled[output.name] = scalar
        self.add(
            Pointwise(
                output=output,
                ranges=ranges,
                body=scalar,
                into=None if into is None else into.name,
                checks=conditions,
                origins=self.origins,
            )
        )
        if into is not None:
            self.buffers.overwrite(into.name, output)
        return make_whole_value(output)

    def reduce(
        self,
        kind: ReduceKind,
        shape: Shape,
        axes: Shape,
        device: str,
        body: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Scalar],
        results: Sequence[DType | None],
        *,
        strides: Sequence[Expr] | None = None,
    ) -> tuple[TensorValue | None, ...]:
        """Append a reduction of `body(i, r)` over `axes`; one result per entry of `results`, None: not
        wanted.
        """
        scalar = simplify(body(make_coordinate_symbols("i", shape), make_coordinate_symbols("r", axes)))
        outputs = tuple(
            None if dtype is None else self.declare(shape, dtype, device, strides=strides)
            for dtype in results
        )
        self.add(
            ReduceNode(
                outputs=outputs,
                kind=kind,
                ranges=make_node_ranges("i", shape),
                axes=make_node_ranges("r", axes),
                body=scalar,
                origins=self.origins,
            )
        )
        return tuple(None if output is None else make_whole_value(output) for output in outputs)

    def copy(
        self, value: TensorValue, *, strides: Sequence[Expr] | None = None, name: str = ""
    ) -> TensorValue:
        """`value` in memory of its own, row-major unless `strides` are given."""
        return self.pointwise(
            value.shape,
            value.dtype,
            value.device,
            lambda point: self.read(value, point),
            strides=strides,
            name=name,
        )

    def allocate(
        self, shape: Shape, dtype: DType, device: str, *, strides: Sequence[Expr] | None = None
    ) -> TensorValue:
        """Memory that holds nothing yet, row-major unless `strides` are given: the first node that stores
        into it makes it.
        """
        output = self.declare(shape, dtype, device, strides=strides)
        self._unfilled.add(output.name)
        return make_whole_value(output)

    def is_unfilled(self, buffer: Buffer) -> bool:
        """Tell if `buffer` was allocated and nothing is stored in it so far."""
        return buffer.name in self._unfilled

    def _view(
        self, source: str, shape: Shape, strides: Sequence[Expr], dtype: DType, offset: Expr, device: str
    ) -> Buffer:
        output = self.declare(shape, dtype, device, strides=strides, name=f"{source}_view")
        self.add(View(output=output, source=source, offset=offset, origins=self.origins))
        self.buffers.note_view(output, Alias(source, offset))
        return output

    def view(
        self,
        source: Buffer,
        shape: Shape,
        strides: Sequence[Expr],
        offset: Expr,
        *,
        dtype: DType | None = None,
    ) -> TensorValue:
        """Return the memory of `source` under another layout, `offset` elements from its first.

        Views of views are made of the memory's owner, so that their chains stay one long.
        """
        name = source.name
        kind = source.dtype if dtype is None else dtype
        alias = self.buffers.alias(source)
        if alias is not None and self.buffers[alias.source].dtype is source.dtype and kind is source.dtype:
            name, offset = alias.source, alias.offset + offset
        key = (name, shape, tuple(strides), kind, offset)
        if key not in self._made:
            self._made[key] = self._view(name, shape, strides, kind, offset, source.device)
        return make_whole_value(self._made[key])

    def view_again(self, buffer: Buffer) -> Buffer:
        """Return the memory of `buffer` under another name, as it is."""
        alias = self.buffers.alias(buffer)
        name, offset = (buffer.name, as_expr(0)) if alias is None else (alias.source, alias.offset)
        return self._view(name, buffer.shape, buffer.strides, buffer.dtype, offset, buffer.device)

    def materialize(self, value: TensorValue, strides: Sequence[Expr] | None) -> TensorValue:
        """`value` as a whole buffer with `strides` (None: any), viewing its memory where possible, else
        copied.
        """
        value = self.current(value)
        if is_whole(value) and (
            strides is None or are_same_strides(value.shape, value.buffer.strides, strides)
        ):
            return value
        layout = find_layout(value)
        if layout is not None and (strides is None or are_same_strides(value.shape, layout.strides, strides)):
            # eager's stride of a one-element dimension, if known, is as good as any
            return self.view(
                value.buffer, value.shape, layout.strides if strides is None else strides, layout.offset
            )
        return self.copy(value, strides=strides)

    def lay_out_long_maps(self, value: Value) -> Value:
        """`value`, laid out in memory if it is a view with a long map of coordinates.

        Views of it would have longer ones.
        """
        if isinstance(value, tuple):
            parts = tuple(self.lay_out_long_maps(part) for part in value)
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
        if not isinstance(value, TensorValue):
            return value
        longest = max((measure_tree(e).nodes for e in value.index), default=0)
        if longest <= self.options.max_index_size:
            return value
        most = self.options.max_index_size
        self.copies.append(
            f"{self.hint}: laid out in memory: index arithmetic of {longest} nodes, at most {most}"
        )
        return self.materialize(value, None)

    def rematerialize(
        self, value: TensorValue, device: str, *, strides: Sequence[Expr] | None = None
    ) -> TensorValue | None:
        """`value` computed on `device`, row-major unless `strides` are given; None if that takes memory of
        its own device.
        """
        read = self.read(value, make_coordinate_symbols("i", value.shape))
        number = recompute_without_memory(
            read, self.buffers.definer, on_cpu=has_trait(value.device, ATEN_CPU)
        )
        if number is None:
            return None
        return self.pointwise(value.shape, value.dtype, device, lambda point: number, strides=strides)

    def move_to(self, value: TensorValue, device: str) -> TensorValue:
        """`value` on `device`, to be read: recomputed there, or copied once until it is overwritten."""
        if value.device == device:
            return value
        again = self.rematerialize(value, device)
        if again is not None:
            return again
        source = self.materialize(value, None)
        key = (source.buffer.name, device)
        if key in self._copies and not self.buffers.is_stale(self._copies[key].name):
            return make_whole_value(self._copies[key])
        output = self.declare(value.shape, value.dtype, device, strides=source.buffer.strides)
        self._copies[key] = output
        self.add(
            Extern(
                target="aten._to_copy.default",
                args=(Ref(source.buffer.name),),
                kwargs=(("device", DeviceValue(device)),),
                outputs=(output,),
                origins=self.origins,
            )
        )
        return make_whole_value(output)


def make_node_ranges(prefix: str, shape: Shape) -> tuple[Expr, ...]:
    """Return the range symbols of a node over `shape`, one-element dimensions included."""
    return tuple(symbol(f"{prefix}{k}", extent=extent) for k, extent in enumerate(shape))
