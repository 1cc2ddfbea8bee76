"""A program as a `torch.fx.GraphModule` that runs by itself.

Nodes are allocations, launches, operator calls, views and size arithmetic. Memory is given back when a node
has no more users, which is when FX's interpreter and generated code drop a value; `Free` therefore needs no
node. But an operator may use memory longer than there are users: what was in flight has one more where it is
freed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    DeviceValue,
    Item,
    ListValue,
    Ref,
    SymbolOutput,
    TorchValue,
    references,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, fold
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    BindSymbol,
    CheckLayout,
    CheckSize,
    Comment,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    Launch,
    PoolView,
    Program,
    Region,
    Reinterpret,
    Return,
    Reuse,
    WhileCall,
)
from coilwork_ir.program.regions import inline_regions
from coilwork_ir.program.symbols import outer_symbols
from coilwork_ir.streams import (
    OWN,
    Copy,
    ForkStream,
    JoinStream,
    RecordEvent,
    StreamInstruction,
    WaitEvent,
)
from coilwork_wrapper import layouts
from coilwork_wrapper.fx import control
from coilwork_wrapper.provenance import origin_lines
from coilwork_wrapper.python.names import identifiers
from coilwork_wrapper.surface import Surface

Launcher = Callable[..., Any]


def emit_fx(
    program: Program,
    launchers: Mapping[str, Launcher],
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    runtime: Surface = layouts,
) -> torch.fx.GraphModule:
    """The graph module that runs `program`; call it with the program's inputs.

    `launchers` are the built kernels by name, called with tensors, then sizes. `constants` are the tensors that
    `program.constants` name. `runtime` provides the functions that check and view tensors, and its errors are what wrong
    inputs raise; `coilwork_runtime.generated` fits.

    Raises:
        EmitError: a kernel has no launcher, a constant no tensor, or a size symbol no value.
    """
    unbound = outer_symbols(program)
    if unbound:
        raise EmitError("unbound-symbol", f"size {unbound[0].name} is not bound in program @{program.name}")
    program = inline_regions(program)
    return _Emitter(program=program, launchers=launchers, constants=constants or {}, runtime=runtime).run()


@dataclass(slots=True, kw_only=True)
class _Emitter:
    """The state of one emission: the graph so far and the node of each name.

    `outer` are the symbols that a nested program is given after its inputs.
    """

    program: Program
    launchers: Mapping[str, Launcher]
    constants: Mapping[str, torch.Tensor]
    runtime: Surface
    outer: tuple[Expr, ...] = ()
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    values: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    symbols: dict[str, Any] = field(default_factory=dict)
    sizes: dict[Expr, Any] = field(default_factory=dict)
    effects: set[str] = field(default_factory=set)
    in_flight: set[str] = field(default_factory=set)
    nested: int = 0

    def run(self) -> torch.fx.GraphModule:
        self._enter()
        for number, constant in enumerate(self.program.constants):
            tensor = self.constants.get(constant.key)
            if tensor is None:
                raise EmitError("missing-constant", f"no tensor for constant {constant.key!r}")
            self.root.register_buffer(f"constant_{number}", tensor, persistent=False)
            self._define(constant.buffer, self.graph.get_attr(f"constant_{number}"))
        for instruction in self.program.instructions:
            self._emit(instruction)
        self.graph.lint()
        return torch.fx.GraphModule(self.root, self.graph, class_name=self.program.name)

    def _enter(self) -> None:
        """Make the parameters: one per input, then one per symbol of the surroundings."""
        entries = (*self.program.inputs, *self.outer)
        # a parameter's target is printed as its name, so it has to be an identifier that no other one has
        seen: set[str] = set()
        numbered: list[str] = []
        for position, entry in enumerate(entries):
            name = entry.name if isinstance(entry, Buffer) or entry.is_symbol else "size"
            numbered.append(f"{name} {position}" if name in seen else name)
            seen.add(name)
        names = identifiers(numbered)
        for entry, name in zip(entries, numbered, strict=True):
            node = self.graph.placeholder(names[name])
            if isinstance(entry, Buffer):
                self._define(entry, node)
            elif entry.is_symbol:
                # AOTAutograd may hand over one size twice
                self.symbols.setdefault(entry.name, node)

    # Values

    def _define(self, buffer: Buffer, node: Any) -> None:
        self.values[buffer.name] = node
        self.buffers[buffer.name] = buffer

    def _size(self, expr: Expr) -> Any:
        """An int, or the node that computes `expr`."""
        known = as_int(expr)
        if known is not None:
            return known
        if expr not in self.sizes:
            self.sizes[expr] = fold(
                expr,
                const=lambda value: value,
                symbol=lambda symbol: self.symbols[symbol.name],
                add=lambda parts: self._chain(operator.add, parts),
                mul=lambda parts: self._chain(operator.mul, parts),
                floordiv=lambda a, b: self._function(operator.floordiv, a, b),
                mod=lambda a, b: self._function(operator.mod, a, b),
                minimum=lambda parts: self._chain(min, parts),
                maximum=lambda parts: self._chain(max, parts),
            )
        return self.sizes[expr]

    def _chain(self, function: Callable[..., Any], parts: Sequence[Any]) -> Any:
        result = parts[0]
        for part in parts[1:]:
            result = self._function(function, result, part)
        return result

    def _layout(self, buffer: Buffer) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(map(self._size, buffer.shape)), tuple(map(self._size, buffer.strides))

    def _function(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def _effect(self, name: str, function: Callable[..., Any], *args: Any) -> torch.fx.Node:
        """Call `function` for what it does rather than returns: as the submodule `name`, which is never dead code."""
        if name not in self.effects:
            self.effects.add(name)
            self.root.add_module(name, _Effect(function))
        return self.graph.call_module(name, args)

    def _argument(self, value: Argument) -> Any:
        match value:
            case Ref(name):
                return self.values[name]
            case Item(name):
                return self.graph.call_method("item", (self.values[name],))
            case Expr():
                return self._size(value)
            case DType():
                return getattr(torch, value.torch_name)
            case TorchValue(attribute):
                return getattr(torch, attribute)
            case DeviceValue(device):
                return torch.device(device)
            case ListValue(items):
                return [self._argument(item) for item in items]
            case _:
                return value

    # Instructions

    def _emit(self, instruction: Instruction) -> None:
        match instruction:
            case BindSymbol():
                self._bind(instruction)
            case CheckLayout():
                buffer = self.buffers[instruction.buffer]
                size, stride = self._layout(buffer)
                arguments = (buffer.name, _dtype(buffer), buffer.device, size, stride)
                value = self.values[buffer.name]
                if instruction.aligned:
                    check = self.runtime.check_aligned_layout
                    self.values[buffer.name] = self._effect("check_aligned_layout", check, value, *arguments)
                else:
                    self._effect("check_layout", self.runtime.check_layout, value, *arguments)
            case Alloc(buffer=buffer):
                size, stride = self._layout(buffer)
                empty = self.runtime.empty_strided
                self._define(buffer, self._function(empty, size, stride, _dtype(buffer), buffer.device))
            case AllocPool():
                size_bytes = self._size(instruction.size_bytes)
                node = self._function(self.runtime.empty_pool, size_bytes, instruction.device)
                self.values[instruction.pool] = node
            case PoolView(buffer=buffer):
                size, stride = self._layout(buffer)
                pool, offset = self.values[instruction.pool], self._size(instruction.offset_bytes)
                view = self.runtime.pool_view
                self._define(buffer, self._function(view, pool, offset, size, stride, _dtype(buffer)))
            case Reuse(buffer=buffer):
                self._define(buffer, self._view(buffer, instruction.source, 0))
            case Reinterpret(buffer=buffer):
                self._define(buffer, self._view(buffer, instruction.source, self._size(instruction.offset)))
            case Free(names=names):
                self._free(names)
            case Region():
                raise AssertionError("regions are inlined before a program is emitted")
            case Comment():
                pass
            case Return(values=values):
                self.graph.output(tuple(self._argument(v) for v in values))
            case Launch():
                self._launch(instruction)
            case ExternCall():
                self._extern(instruction)
            case CheckSize():
                lhs, rhs = self._size(instruction.lhs), self._size(instruction.rhs)
                self._effect(
                    "check_size", control.check_size, lhs, instruction.relation, rhs, instruction.message
                )
            case CondCall():
                self._cond(instruction)
            case WhileCall():
                self._while(instruction)
            case Copy():
                target, source = self.values[instruction.target], self.values[instruction.source]
                args = (target, source, instruction.non_blocking)
                node = self._work("copy", torch.Tensor.copy_, instruction.stream, args)
                node.meta["stack_trace"] = "\n".join(origin_lines(instruction.origins))
                # the host may go on before it is done
                self.in_flight.update((instruction.target, instruction.source))
            case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
                self._order_streams(instruction)

    def _order_streams(self, instruction: StreamInstruction) -> None:
        runtime = self.runtime
        match instruction:
            case ForkStream(stream=stream, device=device, after=after):
                node = self._effect("fork_stream", runtime.fork_stream, device, self._stream(after))
                self.values[stream] = node
            case RecordEvent(event=event, device=device, stream=stream):
                node = self._effect("record_event", runtime.record_event, device, self._stream(stream))
                self.values[event] = node
            case WaitEvent(event=event, stream=None):
                self._effect("synchronize_event", runtime.synchronize_event, self.values[event])
            case WaitEvent(event=event, stream=str(stream)):
                self._effect("wait_event", runtime.wait_event, self.values[event], self._stream(stream))
            case JoinStream(stream=stream, into=into):
                self._effect("join_stream", runtime.join_stream, self._stream(stream), self._stream(into))

    def _stream(self, stream: str) -> torch.fx.Node | None:
        return None if stream == OWN else self.values[stream]

    def _work(
        self, name: str, function: Callable[..., Any], stream: str, args: tuple[Any, ...]
    ) -> torch.fx.Node:
        """A call of `function` for what it does, on `stream`."""
        if stream == OWN:
            return self._effect(name, function, *args)
        return self._effect(
            f"{name}_on_stream", _OnStream(self.runtime, function), self.values[stream], *args
        )

    def _free(self, names: Sequence[str]) -> None:
        held = [self.values[name] for name in names if name in self.in_flight]
        if held:
            self._effect("free", _hold, *held)

    def _bind(self, bind: BindSymbol) -> None:
        # an input may carry a size that a tensor's shape gives as well
        if bind.symbol.name in self.symbols:
            return
        source = self.values[bind.buffer]
        if source.op == "placeholder":
            rank = len(self.buffers[bind.buffer].shape)
            self._effect("check_rank", self.runtime.check_rank, source, bind.buffer, rank)
        self.symbols[bind.symbol.name] = self.graph.call_method(bind.what, (source, bind.dim))

    def _cond(self, call: CondCall) -> None:
        outer = merged(outer_symbols(call.then), outer_symbols(call.otherwise))
        branches = [self._nested(part, outer) for part in (call.then, call.otherwise)]
        operands = [self._argument(a) for a in call.operands]
        predicate, sizes = self.values[call.predicate], [self._size(symbol) for symbol in outer]
        node = self._function(control.run_branch, predicate, *branches, operands, sizes)
        self._results(node, call)

    def _while(self, call: WhileCall) -> None:
        outer = merged(outer_symbols(call.condition), outer_symbols(call.body))
        graphs = [self._nested(part, outer) for part in (call.condition, call.body)]
        carried = [self._argument(a) for a in call.carried]
        extra = [self._argument(a) for a in call.extra] + [self._size(symbol) for symbol in outer]
        self._results(self._function(control.run_loop, *graphs, carried, extra), call)

    def _view(self, buffer: Buffer, source: str, offset: Any) -> Any:
        old, value = self.buffers[source], self.values[source]
        if (old.shape, old.strides, old.dtype) == (
            buffer.shape,
            buffer.strides,
            buffer.dtype,
        ) and offset == 0:
            return value
        size, stride = self._layout(buffer)
        if old.dtype is buffer.dtype:
            return self._function(self.runtime.reinterpret, value, size, stride, offset)
        bits = self.runtime.reinterpret_dtype
        return self._function(bits, value, size, stride, _dtype(buffer), offset)

    def _launch(self, launch: Launch) -> None:
        launcher = self.launchers.get(launch.kernel)
        if launcher is None:
            raise EmitError(
                "missing-source", f"no launcher for kernel {launch.kernel}", origins=launch.origins
            )
        args = [self.values[name] for name in launch.args] + [self._size(s) for s in launch.sizes]
        node = self._work(f"kernel_{launch.kernel}", launcher, launch.stream, tuple(args))
        if launch.stream != OWN:
            self.in_flight.update(launch.args)
        node.meta["stack_trace"] = "\n".join(origin_lines(launch.origins))

    def _extern(self, call: ExternCall) -> None:
        args = [self._argument(a) for a in call.args]
        kwargs = {name: self._argument(value) for name, value in call.kwargs}
        kwargs.update((keyword, self.values[name]) for keyword, name in call.out)
        if call.stream == OWN:
            node = self._function(_operator(call.target), *args, **kwargs)
        else:
            on_stream = self.runtime.on_stream
            node = self._function(
                on_stream, self.values[call.stream], _operator(call.target), *args, **kwargs
            )
            self.in_flight.update(_tensors_of(call))
        node.meta["stack_trace"] = "\n".join(origin_lines(call.origins))
        self.in_flight.update(call.in_flight)
        for number, output in enumerate(call.outputs):
            if output is None:
                continue
            value = node
            for step in () if call.single else call.paths[number] if call.paths else (number,):
                value = self._function(operator.getitem, value, step)
            if isinstance(output, SymbolOutput):
                self.symbols[output.symbol.name] = value
                continue
            for symbol, position, dim in call.binds:
                if position == number:
                    self.symbols[symbol.name] = self.graph.call_method("size", (value, dim))
            aligned = number in call.aligned
            self._define(output, self._ensured(value, output, aligned=aligned))

    def _ensured(self, value: Any, output: Buffer, *, aligned: bool) -> torch.fx.Node:
        size, stride = self._layout(output)
        ensure = self.runtime.ensure_aligned_layout if aligned else self.runtime.ensure_layout
        return self._function(ensure, value, size, stride, _dtype(output))

    def _nested(self, program: Program, outer: tuple[Expr, ...]) -> Any:
        name = f"nested_{self.nested}"
        self.nested += 1
        inner = _Emitter(
            program=program,
            launchers=self.launchers,
            constants=self.constants,
            runtime=self.runtime,
            outer=outer,
        )
        self.root.add_module(name, inner.run())
        return self.graph.get_attr(name)

    def _results(self, node: torch.fx.Node, call: CondCall | WhileCall) -> None:
        node.meta["stack_trace"] = "\n".join(origin_lines(call.origins))
        for number, output in enumerate(call.outputs):
            # a nested program may return its operand or one tensor twice; results have memory of their own
            value = self.graph.call_method("clone", (self._function(operator.getitem, node, number),))
            self._define(output, self._ensured(value, output, aligned=False))


class _OnStream:
    """A function that is called with a stream before its arguments, and whose work is put on that."""

    def __init__(self, runtime: Surface, function: Callable[..., Any]) -> None:
        self._run = runtime.on_stream
        self._function = function

    def __call__(self, stream: torch.Stream | None, *args: Any) -> Any:
        return self._run(stream, self._function, *args)


def _tensors_of(call: ExternCall) -> Iterator[str]:
    for value in (*call.args, *(value for _, value in call.kwargs)):
        yield from references(value)
    yield from (name for _, name in call.out)


def _hold(*tensors: torch.Tensor) -> None:
    """The last use of `tensors`, whose memory operators have used until now."""


class _Effect(torch.nn.Module):
    """A launcher or check as a module, so that FX can name it."""

    # FX must not remove it for want of users
    _is_impure = True

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


def merged(*groups: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Symbols of all groups, each once, in order."""
    return tuple(dict.fromkeys(symbol for group in groups for symbol in group))


def _dtype(buffer: Buffer) -> torch.dtype:
    found: torch.dtype = getattr(torch, buffer.dtype.torch_name)
    return found


def _operator(target: str) -> Callable[..., Any]:
    """The overload called `target`, e.g. `"aten.mm.out"`."""
    value: Any = torch.ops
    for part in target.split("."):
        value = getattr(value, part)
    found: Callable[..., Any] = value
    return found
