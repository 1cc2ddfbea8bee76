"""A program as a `torch.fx.GraphModule` that runs by itself.

Nodes are allocations, launches, operator calls, views and size arithmetic. Memory is given back when a node has no more
users, which is when FX's interpreter and generated code drop a value; `Free` therefore needs no node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coilwork_ir.buffers import Argument, Buffer, DeviceValue, ListValue, Ref, SymbolOutput, TorchValue
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
    Reinterpret,
    Return,
    Reuse,
    WhileCall,
)
from coilwork_wrapper.fx import functions
from coilwork_wrapper.provenance import origin_lines

Launcher = Callable[..., Any]


def emit_fx(
    program: Program,
    launchers: Mapping[str, Launcher],
    constants: Mapping[str, torch.Tensor] | None = None,
) -> torch.fx.GraphModule:
    """The graph module that runs `program`; call it with the program's inputs.

    `launchers` are the built kernels by name, called with tensors, then sizes. `constants` are the tensors that
    `program.constants` name.

    Raises:
        EmitError: a kernel has no launcher, or a constant no tensor.
    """
    return _Emitter(program=program, launchers=launchers, constants=constants or {}).run()


@dataclass(slots=True, kw_only=True)
class _Emitter:
    """The state of one emission: the graph so far and the node of each name."""

    program: Program
    launchers: Mapping[str, Launcher]
    constants: Mapping[str, torch.Tensor]
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    values: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    symbols: dict[str, Any] = field(default_factory=dict)
    sizes: dict[Expr, Any] = field(default_factory=dict)
    nested: int = 0

    def run(self) -> torch.fx.GraphModule:
        for number, entry in enumerate(self.program.inputs):
            if isinstance(entry, Buffer):
                self._define(entry, self.graph.placeholder(entry.name))
            else:
                # AOTAutograd may hand over one size twice; the inputs of a function have different names
                named = entry.is_symbol and entry.name not in self.symbols
                node = self.graph.placeholder(entry.name if named else f"size_{number}")
                if named:
                    self.symbols[entry.name] = node
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

    def _argument(self, value: Argument) -> Any:
        match value:
            case Ref(name):
                return self.values[name]
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
                node = self.graph.call_method(
                    instruction.what, (self.values[instruction.buffer], instruction.dim)
                )
                self.symbols[instruction.symbol.name] = node
            case CheckLayout():
                buffer = self.buffers[instruction.buffer]
                size, stride = self._layout(buffer)
                dtype = getattr(torch, buffer.dtype.torch_name)
                check = functions.check_aligned_layout if instruction.aligned else functions.check_layout
                node = self._function(check, self.values[buffer.name], buffer.name, dtype, size, stride)
                if instruction.aligned:
                    self.values[buffer.name] = node
            case Alloc(buffer=buffer):
                size, stride = self._layout(buffer)
                dtype = getattr(torch, buffer.dtype.torch_name)
                node = self._function(torch.empty_strided, size, stride, dtype=dtype, device=buffer.device)
                self._define(buffer, node)
            case AllocPool():
                size_bytes = self._size(instruction.size_bytes)
                node = self._function(
                    torch.empty, (size_bytes,), dtype=torch.uint8, device=instruction.device
                )
                self.values[instruction.pool] = node
            case PoolView(buffer=buffer):
                size, stride = self._layout(buffer)
                pool, offset = self.values[instruction.pool], self._size(instruction.offset_bytes)
                dtype = getattr(torch, buffer.dtype.torch_name)
                self._define(buffer, self._function(functions.pool_view, pool, offset, size, stride, dtype))
            case Reuse(buffer=buffer):
                self._define(buffer, self._view(buffer, instruction.source, 0))
            case Reinterpret(buffer=buffer):
                self._define(buffer, self._view(buffer, instruction.source, self._size(instruction.offset)))
            case Free() | Comment():
                pass
            case Return(values=values):
                self.graph.output(tuple(self._argument(v) for v in values))
            case Launch():
                self._launch(instruction)
            case ExternCall():
                self._extern(instruction)
            case CheckSize():
                lhs, rhs = self._size(instruction.lhs), self._size(instruction.rhs)
                self._function(functions.check_size, lhs, instruction.relation, rhs, instruction.message)
            case CondCall():
                branches = [self._nested(instruction.then), self._nested(instruction.otherwise)]
                operands = [self._argument(a) for a in instruction.operands]
                predicate = self.values[instruction.predicate]
                self._results(
                    self._function(functions.run_branch, predicate, *branches, operands), instruction.outputs
                )
            case WhileCall():
                graphs = [self._nested(instruction.condition), self._nested(instruction.body)]
                carried = [self._argument(a) for a in instruction.carried]
                extra = [self._argument(a) for a in instruction.extra]
                self._results(
                    self._function(functions.run_loop, *graphs, carried, extra), instruction.outputs
                )

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
            return self._function(functions.reinterpret, value, size, stride, offset)
        dtype = getattr(torch, buffer.dtype.torch_name)
        return self._function(functions.reinterpret_dtype, value, size, stride, offset, dtype)

    def _launch(self, launch: Launch) -> None:
        launcher = self.launchers.get(launch.kernel)
        if launcher is None:
            raise EmitError(
                "missing-source", f"no launcher for kernel {launch.kernel}", origins=launch.origins
            )
        args = [self.values[name] for name in launch.args] + [self._size(s) for s in launch.sizes]
        # FX prints a call by the function's qualified name; a launcher is an object, so it becomes a submodule.
        name = f"kernel_{launch.kernel}"
        if not hasattr(self.root, name):
            self.root.add_module(name, _Kernel(launcher))
        node = self.graph.call_module(name, tuple(args))
        node.meta["stack_trace"] = "\n".join(origin_lines(launch.origins))

    def _extern(self, call: ExternCall) -> None:
        args = [self._argument(a) for a in call.args]
        kwargs = {name: self._argument(value) for name, value in call.kwargs}
        kwargs.update((keyword, self.values[name]) for keyword, name in call.out)
        node = self._function(_operator(call.target), *args, **kwargs)
        node.meta["stack_trace"] = "\n".join(origin_lines(call.origins))
        for number, output in enumerate(call.outputs):
            if output is None:
                continue
            value = node if call.single else self._function(operator.getitem, node, number)
            if isinstance(output, SymbolOutput):
                self.symbols[output.symbol.name] = value
                continue
            for symbol, position, dim in call.binds:
                if position == number:
                    self.symbols[symbol.name] = self.graph.call_method("size", (value, dim))
            size, stride = self._layout(output)
            self._define(output, self._function(functions.ensure_layout, value, size, stride))

    def _nested(self, program: Program) -> Any:
        name = f"nested_{self.nested}"
        self.nested += 1
        module = emit_fx(program, self.launchers, self.constants)
        self.root.add_module(name, module)
        return self.graph.get_attr(name)

    def _results(self, node: torch.fx.Node, outputs: Sequence[Buffer]) -> None:
        for number, output in enumerate(outputs):
            self._define(output, self._function(operator.getitem, node, number))


class _Kernel(torch.nn.Module):
    """A kernel's launcher as a module, so that FX can name it."""

    # launches have effects: FX must not remove them for want of users
    _is_impure = True

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self._launcher = launcher

    def forward(self, *args: Any) -> None:
        self._launcher(*args)


def _operator(target: str) -> Callable[..., Any]:
    """The overload called `target`, e.g. `"aten.mm.out"`."""
    value: Any = torch.ops
    for part in target.split("."):
        value = getattr(value, part)
    found: Callable[..., Any] = value
    return found
