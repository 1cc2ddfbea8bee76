"""A program as a `torch.fx.GraphModule` that runs by itself, and that others may compile further.

Nodes are what passes over FX graphs know: `torch.empty_strided`, `torch.as_strided`, calls of operators,
`getitem`, arithmetic of sizes, and launches. A launch of a Triton kernel is a call of torch's Triton operator
(`triton_calls.py`), one of another kernel a call of an operator that is defined for it
(`kernel_operators.py`). Checks, conditionals, loops and streams are functions (`fx_functions.py`).

Memory is given back when a node has no more users, which is when FX's interpreter and generated code drop a
value; `Free` therefore needs no node. An operator may use memory longer than there are users: what was in
flight has one more user where it is freed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx.node import has_side_effect

import coilwork_wrapper.layouts as layouts
from coilwork_ir.buffers import (
    Argument,
    Buffer,
    DeviceValue,
    Item,
    ListValue,
    Ref,
    SymbolOutput,
    TorchValue,
    list_references,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, as_int, ceildiv, fold, maximum
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
    LoopCall,
    PoolView,
    Program,
    Region,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_ir.program.regions import inline_regions, outline_regions
from coilwork_ir.program.walk import check_bound, list_outer_symbols
from coilwork_ir.streams import (
    OWN,
    Copy,
    ForkStream,
    JoinStream,
    RecordEvent,
    StreamInstruction,
    WaitEvent,
)
from coilwork_ir.wrapper import Launcher
from coilwork_wrapper.fx_functions import check_size, hold, run_branch, run_loop, run_rounds
from coilwork_wrapper.kernel_operators import define_operators
from coilwork_wrapper.provenance import list_origin_lines
from coilwork_wrapper.python.scope import make_identifiers
from coilwork_wrapper.runtime_interface import Surface
from coilwork_wrapper.torch_compat import get_launch_operator
from coilwork_wrapper.triton_calls import TritonKernel, TritonLaunch, run_code

if TYPE_CHECKING:
    from coilwork_runtime.manifest.size_bytecode import SizeBytecode

_OPERATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        "ADD": operator.add,
        "SUBTRACT": operator.sub,
        "MULTIPLY": operator.mul,
        "FLOOR_DIVIDE": operator.floordiv,
        "MODULO": operator.mod,
        "MINIMUM": torch.sym_min,
        "MAXIMUM": torch.sym_max,
    }
)
"""The operations on sizes, as nodes call them, by their names in a kernel's code."""


def emit_fx(
    program: Program,
    launchers: Mapping[str, Launcher],
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    runtime: Surface = layouts,
) -> torch.fx.GraphModule:
    """Return the graph module that runs `program`; call it with the program's inputs.

    `launchers` are the built kernels by name, called with tensors, then sizes. `constants` are the tensors
    that `program.constants` name. `runtime` provides the functions that check and view tensors, and its
    errors are what wrong inputs raise; `coilwork_runtime.generated` fits.

    Raises:
        EmitError: a kernel has no launcher, a constant no tensor, or a size symbol no value.
    """
    check_bound(program)
    return FxEmitter(
        program=program,
        launchers=define_operators(program, launchers),
        constants=constants or {},
        runtime=runtime,
    ).run()


@dataclass(slots=True, kw_only=True)
class FxEmitter:
    """One emission of a program: a method for each instruction, to be overridden one at a time.

    A subclass is handed to `torch.compile` by the option `fx_emitter`, or to `FxWrapper`. To compile the
    graph further, it overrides `compile_graph` alone. To write other nodes, it overrides the methods of
    instructions. These add nodes to `graph` by `call`, for results, and `act`, for what is done; they look
    operands up by `values`, `size` and `argument`, and say by `define` which node a buffer is.

    Attributes:
        program: what is emitted.
        launchers: kernels by name: operators of tensors, then sizes (`define_operators`), and Triton kernels.
        constants: tensors by key.
        runtime: the functions that check and view tensors.
        outer: the symbols that a nested program is given after its inputs.
        root: holds what nodes name: constants and nested graphs.
        graph: the graph so far.
        values: the node of each buffer, pool, stream and event.
        buffers: the declaration of each buffer so far.
        symbols: the node of each size symbol.
        in_flight: names whose memory something may still use when they are freed.
    """

    program: Program
    launchers: Mapping[str, Launcher | TritonKernel]
    constants: Mapping[str, torch.Tensor]
    runtime: Surface
    outer: tuple[Expr, ...] = ()
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    values: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    symbols: dict[str, Any] = field(default_factory=dict)
    in_flight: set[str] = field(default_factory=set)
    _sizes: dict[Expr, Any] = field(init=False, default_factory=dict)
    _starts: dict[str, Any] = field(init=False, default_factory=dict)
    _pool_bytes: dict[str, Expr] = field(init=False, default_factory=dict)
    _subprograms: dict[int, str] = field(init=False, default_factory=dict)

    def compile_graph(self, graph: torch.fx.GraphModule) -> Callable[..., Sequence[Any]]:
        """Return what is called for `graph`, with its inputs one by one; here it is the graph itself.

        This is the method that compilers of FX graphs override. `graph` is theirs: they may change it.
        """
        return graph

    def run(self) -> torch.fx.GraphModule:
        """Return the graph module of the whole program."""
        self._enter()
        for number, constant in enumerate(self.program.constants):
            tensor = self.constants.get(constant.key)
            if tensor is None:
                raise EmitError("missing-constant", f"no tensor for constant {constant.key!r}")
            self.root.register_buffer(f"constant_{number}", tensor, persistent=False)
            self.define(constant.buffer, self.graph.get_attr(f"constant_{number}"))
        for instruction in inline_regions(outline_regions(self.program)).instructions:
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
        names = make_identifiers(numbered)
        for entry, name in zip(entries, numbered, strict=True):
            node = self.graph.placeholder(names[name])
            if isinstance(entry, Buffer):
                self.define(entry, node)
            elif entry.is_symbol:
                # AOTAutograd may hand over one size twice
                self.symbols.setdefault(entry.name, node)

    def _emit(self, instruction: Instruction) -> None:
        match instruction:
            case BindSymbol():
                # an input may carry a size that a tensor's shape gives as well
                if instruction.symbol.name not in self.symbols:
                    self.bind_symbol(instruction)
            case CheckLayout():
                self.check_layout(instruction)
            case Alloc():
                self.alloc(instruction)
            case AllocPool():
                self.alloc_pool(instruction)
            case PoolView():
                self.pool_view(instruction)
            case Reuse():
                self.reuse(instruction)
            case Reinterpret():
                self.reinterpret(instruction)
            case Launch():
                self.launch(instruction)
                if instruction.stream != OWN:
                    self.in_flight.update(instruction.args)
            case ExternCall():
                self.extern_call(instruction)
                self.in_flight.update(instruction.in_flight)
                if instruction.stream != OWN:
                    self.in_flight.update(_tensors_of(instruction))
            case CheckSize():
                self.check_size(instruction)
            case CondCall():
                self.cond(instruction)
            case LoopCall():
                self.repeat(instruction)
            case SubprogramCall():
                self.run_subprogram(instruction)
            case Copy():
                self.copy(instruction)
                # the host may go on before it is done
                self.in_flight.update((instruction.target, instruction.source))
            case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
                self.order_streams(instruction)
            case Free():
                self.free(instruction)
            case Return():
                self.finish(instruction)
            case Region():
                raise AssertionError("regions are inlined before a program is emitted")
            case Comment():
                pass

    # Values

    def define(self, buffer: Buffer, node: Any) -> None:
        """Let `buffer` be the value of `node` from here on."""
        self.values[buffer.name] = node
        self.buffers[buffer.name] = buffer

    def size(self, expr: Expr) -> Any:
        """Return an int, or the node that computes `expr`."""
        known = as_int(expr)
        if known is not None:
            return known
        if expr not in self._sizes:
            self._sizes[expr] = fold(
                expr,
                const=lambda value: value,
                symbol=lambda symbol: self.symbols[symbol.name],
                add=lambda parts: self._chain(operator.add, parts),
                mul=lambda parts: self._chain(operator.mul, parts),
                floordiv=lambda a, b: self.call(operator.floordiv, a, b),
                mod=lambda a, b: self.call(operator.mod, a, b),
                minimum=lambda parts: self._chain(torch.sym_min, parts),
                maximum=lambda parts: self._chain(torch.sym_max, parts),
            )
        return self._sizes[expr]

    def _chain(self, function: Callable[..., Any], parts: Sequence[Any]) -> Any:
        result = parts[0]
        for part in parts[1:]:
            result = self.call(function, result, part)
        return result

    def layout(self, buffer: Buffer) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Shape and strides, as ints and nodes."""
        return tuple(map(self.size, buffer.shape)), tuple(map(self.size, buffer.strides))

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Return a node that computes `target` of the arguments. FX may drop it if nobody uses it."""
        return self.graph.call_function(target, args, kwargs)

    def act(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Return a node that calls `function` for what it does rather than returns: it is never dead code."""
        return self.graph.call_function(has_side_effect(function), args, kwargs)

    def _call_on(self, stream: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Return a node that calls an operator, with the work on `stream`."""
        if stream == OWN:
            return self.call(function, *args, **kwargs)
        return self.act(self.runtime.on_stream, self.values[stream], function, *args, **kwargs)

    def argument(self, value: Argument) -> Any:
        """Return an operator's argument, as a value or a node."""
        match value:
            case Ref(name):
                return self.values[name]
            case Item(name):
                return self.graph.call_method("item", (self.values[name],))
            case Expr():
                return self.size(value)
            case DType():
                return getattr(torch, value.torch_name)
            case TorchValue(attribute):
                return getattr(torch, attribute)
            case DeviceValue(device):
                return torch.device(device)
            case ListValue(items):
                return [self.argument(item) for item in items]
            case _:
                return value

    # Instructions

    def bind_symbol(self, bind: BindSymbol) -> None:
        """Read a size or stride off a tensor."""
        source = self.values[bind.buffer]
        if source.op == "placeholder":
            rank = len(self.buffers[bind.buffer].shape)
            self.act(self.runtime.check_rank, source, bind.buffer, rank)
        read = torch.ops.aten.sym_size.int if bind.what == "size" else torch.ops.aten.sym_stride.int
        self.symbols[bind.symbol.name] = self.call(read, source, bind.dim)

    def check_layout(self, check: CheckLayout) -> None:
        """Refuse an input of another layout; one at the wrong address is copied."""
        buffer = self.buffers[check.buffer]
        if not check.asserted:
            values = self.act(self.runtime.ensure_aligned, self.values[buffer.name])
            self.values[buffer.name] = self.call(operator.getitem, values, 0)
            return
        size, stride = self.layout(buffer)
        arguments = (buffer.name, get_torch_type(buffer), buffer.device, size, stride)
        value = self.values[buffer.name]
        if check.aligned:
            aligned = self.runtime.check_aligned_layout
            self.values[buffer.name] = self.act(aligned, value, *arguments)
        else:
            self.act(self.runtime.check_layout, value, *arguments)

    def alloc(self, alloc: Alloc) -> None:
        """Make a buffer."""
        buffer = alloc.buffer
        size, stride = self.layout(buffer)
        self.define(buffer, self._allocate(size, stride, get_torch_type(buffer), buffer.device))
        self._starts[buffer.name] = 0

    def _allocate(self, size: Any, stride: Any, dtype: torch.dtype, device: str) -> torch.fx.Node:
        return self.call(torch.empty_strided, size, stride, dtype=dtype, device=torch.device(device))

    def alloc_pool(self, alloc: AllocPool) -> None:
        """Make a block of memory for several buffers."""
        size = (self.size(alloc.size_bytes),)
        self.values[alloc.pool] = self._allocate(size, (1,), torch.uint8, alloc.device)
        self._pool_bytes[alloc.pool] = alloc.size_bytes

    def pool_view(self, view: PoolView) -> None:
        """Place a buffer inside of a pool."""
        buffer, start = view.buffer, self.size(view.offset_bytes)
        dtype = get_torch_type(buffer)
        # all that is behind it, in whole elements: a pool is larger than any of its buffers
        count = (self._pool_bytes[view.pool] - view.offset_bytes) // dtype.itemsize
        line = ((self.size(count * dtype.itemsize),), (1,), start)
        value = self.call(torch.as_strided, self.values[view.pool], *line)
        if dtype is not torch.uint8:
            value = self.call(torch.ops.aten.view.dtype, value, dtype)
        size, stride = self.layout(buffer)
        self.define(buffer, self.call(torch.as_strided, value, size, stride))
        self._starts[buffer.name] = self.size(view.offset_bytes // dtype.itemsize)

    def reuse(self, reuse: Reuse) -> None:
        """Give a dead buffer's memory to another."""
        self.define(reuse.buffer, self._view(reuse.buffer, reuse.source, as_expr(0)))

    def reinterpret(self, view: Reinterpret) -> None:
        """Look at a buffer's memory under another layout."""
        self.define(view.buffer, self._view(view.buffer, view.source, view.offset))

    def launch(self, launch: Launch) -> None:
        """Run a kernel."""
        launcher = self.launchers.get(launch.kernel)
        if launcher is None:
            raise EmitError(
                "missing-source", f"no launcher for kernel {launch.kernel}", origins=launch.origins
            )
        if isinstance(launcher, TritonKernel):
            node = self._launch_triton(launch, launcher.choose(list(map(as_int, launch.sizes))))
        else:
            args = [self.values[name] for name in launch.args] + [self.size(s) for s in launch.sizes]
            node = self._call_on(launch.stream, launcher, *args)
        node.meta["stack_trace"] = "\n".join(list_origin_lines(launch.origins))

    def _launch_triton(self, launch: Launch, chosen: TritonLaunch) -> torch.fx.Node:
        sizes = list(map(self.size, launch.sizes))
        given = dict(zip(chosen.passed, (*launch.args, *sizes), strict=True))
        for parameter, name in zip(chosen.passed, launch.args, strict=False):
            value, dtype = self.values[name], chosen.dtypes[parameter]
            if dtype.itemsize == 1 and dtype is not get_torch_type(self.buffers[name]):
                # kernels may take 8-bit floats as their bits
                value = self.call(torch.ops.aten.view.dtype, value, dtype)
            given[parameter] = value
        device = self.buffers[launch.args[0]].device
        for parameter, elements in chosen.scratch.items():
            count = self._compute(elements, sizes)
            given[parameter] = self._allocate((count,), (1,), chosen.dtypes[parameter], device)
        extents = tuple(self._compute(code, sizes) for code in chosen.grid)
        return self._call_on(
            launch.stream,
            get_launch_operator(),
            kernel_idx=chosen.kernel,
            constant_args_idx=chosen.constants,
            grid=[extents],
            tma_descriptor_metadata={},
            kwargs=given,
        )

    def _compute(self, code: SizeBytecode, sizes: Sequence[Any]) -> Any:
        """Return the value of a kernel's code, an int or a node."""
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) == len(sizes):
            return code.evaluate(known)
        return run_code(code, sizes, self._operate)

    def _operate(self, name: str, a: Any, b: Any) -> Any:
        function = _OPERATIONS[name]
        is_known = isinstance(a, int) and isinstance(b, int)
        return function(a, b) if is_known else self.call(function, a, b)

    def extern_call(self, call: ExternCall) -> None:
        """Call a torch operator."""
        args = [self.argument(a) for a in call.args]
        kwargs = {name: self.argument(value) for name, value in call.kwargs}
        kwargs.update((keyword, self.values[name]) for keyword, name in call.out)
        function = find_operator(call.target)
        node = self._call_on(call.stream, function, *args, **kwargs)
        node.meta["stack_trace"] = "\n".join(list_origin_lines(call.origins))
        for number, output in enumerate(call.outputs):
            if output is None:
                continue
            value = node
            for step in () if call.single else call.paths[number] if call.paths else (number,):
                value = self.call(operator.getitem, value, step)
            if isinstance(output, SymbolOutput):
                self.symbols[output.symbol.name] = value
                continue
            for symbol, position, dim in call.binds:
                if position == number:
                    self.symbols[symbol.name] = self.call(torch.ops.aten.sym_size.int, value, dim)
            aligned = number in call.aligned
            self.define(output, self._ensure_layout(value, output, aligned=aligned))

    def check_size(self, check: CheckSize) -> None:
        """Raise an error unless a relation of sizes holds."""
        lhs, rhs = self.size(check.lhs), self.size(check.rhs)
        self.act(check_size, lhs, check.relation, rhs, check.message)

    def cond(self, call: CondCall) -> None:
        """Run one of two programs."""
        outer = merge_symbols(list_outer_symbols(call.then), list_outer_symbols(call.otherwise))
        branches = [self.nest(part, outer) for part in (call.then, call.otherwise)]
        operands = [self.argument(a) for a in call.operands]
        predicate, sizes = self.values[call.predicate], [self.size(symbol) for symbol in outer]
        node = self.call(run_branch, predicate, *branches, operands, sizes)
        self._results(node, call)

    def repeat(self, call: LoopCall) -> None:
        """Run a program while another says so, or so many times."""
        outer = list_outer_symbols(call.body)
        carried = [self.argument(a) for a in call.carried]
        extra = [self.argument(a) for a in call.extra]
        if call.condition is not None:
            outer = merge_symbols(list_outer_symbols(call.condition), outer)
            graphs = [self.nest(part, outer) for part in (call.condition, call.body)]
            sizes = [self.size(symbol) for symbol in outer]
            self._results(self.call(run_loop, *graphs, carried, [*extra, *sizes]), call)
        elif call.rounds is not None:
            body, rounds = self.nest(call.body, outer), self.size(call.rounds)
            sizes = [self.size(symbol) for symbol in outer]
            self._results(self.call(run_rounds, rounds, body, carried, extra, sizes), call)

    def run_subprogram(self, call: SubprogramCall) -> None:
        """Run a program that may be run elsewhere, too: a submodule of its name, which all calls share and
        somebody may replace."""
        if id(call.body) not in self._subprograms:
            self._subprograms[id(call.body)] = self._add_module(call.body.name, self._inner(call.body, ()))
        name = self._subprograms[id(call.body)]
        node = self.graph.call_module(name, tuple(map(self.argument, call.operands)))
        node.meta["stack_trace"] = "\n".join(list_origin_lines(call.origins))
        for number, output in enumerate(call.outputs):
            value = self.call(operator.getitem, node, number)
            self.define(output, self._ensure_layout(value, output, aligned=False))

    def copy(self, copy: Copy) -> None:
        """Copy a buffer into another one."""
        args = (self.values[copy.target], self.values[copy.source], copy.non_blocking)
        node = self._call_on(copy.stream, torch.ops.aten.copy_.default, *args)
        node.meta["stack_trace"] = "\n".join(list_origin_lines(copy.origins))

    def order_streams(self, step: StreamInstruction) -> None:
        """Make a stream or an event, or let one wait for another."""
        runtime = self.runtime
        match step:
            case ForkStream(stream=stream, device=device, after=after):
                made = self.act(runtime.fork_stream, device, self._stream(after))
                self.values[stream] = made
            case RecordEvent(event=event, device=device, stream=stream):
                made = self.act(runtime.record_event, device, self._stream(stream))
                self.values[event] = made
            case WaitEvent(event=event, stream=None):
                self.act(runtime.synchronize_event, self.values[event])
            case WaitEvent(event=event, stream=str(stream)):
                self.act(runtime.wait_event, self.values[event], self._stream(stream))
            case JoinStream(stream=stream, into=into):
                self.act(runtime.join_stream, self._stream(stream), self._stream(into))

    def _stream(self, stream: str) -> torch.fx.Node | None:
        return None if stream == OWN else self.values[stream]

    def free(self, free: Free) -> None:
        """Give back memory: FX does where a node has no more users, but for what an operator may still
        use."""
        held = [self.values[name] for name in free.names if name in self.in_flight]
        if held:
            self.act(hold, *held)

    def finish(self, results: Return) -> None:
        """Return the results."""
        self.graph.output(tuple(self._release(self.argument(v)) for v in results.values))

    def _release(self, value: Any) -> Any:
        """Return a result that is no view of the memory that it lies in: writes to it change no other's
        count.
        """
        if not isinstance(value, torch.fx.Node) or value.target is not torch.as_strided:
            return value
        _, size, stride, *_ = value.args
        assert isinstance(size, tuple | list) and isinstance(stride, tuple | list)
        if 1 in size and not _views_alike(size, stride):
            return self.call(self.runtime.reinterpret, value, size, stride, 0)
        return self.call(torch.ops.aten._unsafe_view.default, value, size)

    def nest(self, program: Program, outer: tuple[Expr, ...]) -> Any:
        """Return a nested program as the node of a graph of its own, emitted by the same class."""
        return self.graph.get_attr(self._add_module("inner_program", self._inner(program, outer)))

    def _add_module(self, wanted: str, module: torch.fx.GraphModule) -> str:
        """Add `module` to the root under a name of its own, `wanted` if it is free; returns the name."""
        taken = frozenset(name for name, _ in (*self.root.named_children(), *self.root.named_buffers()))
        name = make_identifiers([wanted], taken)[wanted]
        self.root.add_module(name, module)
        return name

    def _inner(self, program: Program, outer: tuple[Expr, ...]) -> torch.fx.GraphModule:
        emitter = type(self)(
            program=program,
            launchers=self.launchers,
            constants=self.constants,
            runtime=self.runtime,
            outer=outer,
        )
        module = emitter.run()
        # it may write its operands: FX must not remove it for want of users
        module.__dict__["_is_impure"] = True
        return module

    def _view(self, buffer: Buffer, source: str, offset: Expr) -> Any:
        """Return the memory of `source` as `buffer`, `offset` of its elements after the start of `source`."""
        old, value, step = self.buffers[source], self.values[source], self.size(offset)
        if (old.shape, old.strides, old.dtype) == (buffer.shape, buffer.strides, buffer.dtype) and step == 0:
            self._starts[buffer.name] = self._starts.get(source)
            return value
        size, stride = self.layout(buffer)
        dtype, start = get_torch_type(buffer), self._starts.get(source)
        if old.dtype is not buffer.dtype:
            # the bits as a line of old elements, then as one of new ones
            span_bytes = maximum(buffer.span + offset, 0) * dtype.itemsize
            line = self.size(ceildiv(span_bytes, get_torch_type(old).itemsize))
            value = self.call(torch.as_strided, value, (line,), (1,))
            value = self.call(torch.ops.aten.view.dtype, value, dtype)
            start = None if start != 0 else 0
        if step == 0:
            self._starts[buffer.name] = start
            return self.call(torch.as_strided, value, size, stride)
        if start is None:
            start = self.call(torch.ops.aten.sym_storage_offset.default, value)
        total = (
            step
            if start == 0
            else start + step
            if isinstance(start, int) and isinstance(step, int)
            else (self.call(operator.add, start, step))
        )
        self._starts[buffer.name] = total
        return self.call(torch.as_strided, value, size, stride, total)

    def _ensure_layout(self, value: Any, output: Buffer, *, aligned: bool) -> torch.fx.Node:
        size, stride = self.layout(output)
        ensure = self.runtime.ensure_aligned_layout if aligned else self.runtime.ensure_layout
        return self.call(ensure, value, size, stride, get_torch_type(output))

    def _results(self, node: torch.fx.Node, call: CondCall | LoopCall) -> None:
        node.meta["stack_trace"] = "\n".join(list_origin_lines(call.origins))
        for number, output in enumerate(call.outputs):
            # a nested program may return its operand or one tensor twice; results have memory of their own
            value = self.graph.call_method("clone", (self.call(operator.getitem, node, number),))
            self.define(output, self._ensure_layout(value, output, aligned=False))


def _views_alike(size: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Tell if a view in the sizes of a tensor has its strides: of dimensions of 1 it chooses them anew."""
    if not all(isinstance(one, int) for one in (*size, *stride)):
        return False
    tensor = torch.empty_strided(tuple(size), tuple(stride), device="meta")
    viewed: torch.Tensor = torch.ops.aten._unsafe_view.default(tensor, tensor.shape)
    return viewed.stride() == tuple(stride)


def is_emitter(value: object) -> bool:
    """Return True if `value` is a class by which graphs can be emitted."""
    return isinstance(value, type) and issubclass(value, FxEmitter)


def _tensors_of(call: ExternCall) -> Iterator[str]:
    for value in (*call.args, *(value for _, value in call.kwargs)):
        yield from list_references(value)
    yield from (name for _, name in call.out)


def merge_symbols(*groups: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Symbols of all groups, each once, in order."""
    return tuple(dict.fromkeys(symbol for group in groups for symbol in group))


def get_torch_type(buffer: Buffer) -> torch.dtype:
    """Return the element type as torch's."""
    dtype: torch.dtype = getattr(torch, buffer.dtype.torch_name)
    return dtype


def find_operator(target: str) -> Callable[..., Any]:
    """Return the overload called `target`, e.g. `"aten.mm.out"`."""
    value: Any = torch.ops
    for part in target.split("."):
        value = getattr(value, part)
    operator: Callable[..., Any] = value
    return operator
