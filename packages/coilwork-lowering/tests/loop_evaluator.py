"""A slow evaluator of loop IR graphs on CPU tensors, for tests: index arrays over whole domains, plain torch
ops.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork_ir.buffers import Buffer, DeviceValue, Item, ListValue, Ref, SymbolOutput, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, evaluate, fold
from coilwork_ir.interpretation.memory import Memory
from coilwork_ir.loops import (
    AssertSize,
    Attention,
    AttentionGradient,
    Check,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Graph,
    Loop,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
    interpreter,
)
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.scalar import Combine, Const, IndexValue, Load, Op, Parameter, Scalar, iterate_postorder

OPS: dict[str, Callable[..., torch.Tensor]] = {
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder,
    "div": torch.true_divide,
    "fma": lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype),
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    "zeta": torch.special.zeta,
    "hermite_h": torch.special.hermite_polynomial_h,
    "hermite_he": torch.special.hermite_polynomial_he,
    "laguerre": torch.special.laguerre_polynomial_l,
    "legendre": torch.special.legendre_polynomial_p,
}


def torch_dtype(dtype: DType) -> torch.dtype:
    found = getattr(torch, dtype.torch_name)
    assert isinstance(found, torch.dtype)
    return found


class Evaluator:
    """Runs one graph; `memory` maps buffer names to tensors with the declared layout."""

    def __init__(self, graph: Graph, constants: Any) -> None:
        self.graph = graph
        self.constants = constants
        self.memory: dict[str, torch.Tensor] = {c.buffer.name: constants[c.key] for c in graph.constants}
        self.dead: set[str] = set()
        self.sizes: dict[str, int] = {}

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        for given, value in zip(self.graph.inputs, inputs, strict=True):
            if isinstance(given, Buffer):
                self.memory[given.name] = value
                for extent, size in zip(given.shape, value.shape, strict=True):
                    if extent.is_symbol:
                        self.sizes[extent.name] = size
            else:
                self.sizes[given.name] = int(value)
        for node in self.graph.nodes:
            self.step(node)
        return [self.output(o) for o in self.graph.outputs]

    def output(self, item: Any) -> Any:
        if isinstance(item, Ref):
            assert item.name not in self.dead, f"output {item.name} was overwritten"
            return self.memory[item.name]
        return self.size(item) if isinstance(item, Expr) else item

    def size(self, e: Expr) -> int:
        return evaluate(e, self.sizes)

    def allocate(self, buffer: Buffer) -> torch.Tensor:
        shape, strides = [self.size(e) for e in buffer.shape], [self.size(e) for e in buffer.strides]
        made = torch.empty_strided(shape, strides, dtype=torch_dtype(buffer.dtype), device=buffer.device)
        if buffer.dtype.is_float or buffer.dtype.is_integer:
            # so that reading too early shows
            made.fill_(float("nan") if buffer.dtype.is_float else 0x5A)
        self.memory[buffer.name] = made
        return made

    def take_over(self, old: str, new: Buffer) -> torch.Tensor:
        assert old not in self.dead
        self.dead.add(old)
        self.memory[new.name] = self.memory[old]
        assert list(self.memory[old].stride()) == [self.size(e) for e in new.strides]
        return self.memory[old]

    def env(self, ranges: Sequence[Expr]) -> dict[Expr, torch.Tensor]:
        sizes = [0 if r.extent is None else self.size(r.extent) for r in ranges]
        rank = len(ranges)
        return {
            r: torch.arange(n).reshape([n if j == k else 1 for j in range(rank)])
            for k, (r, n) in enumerate(zip(ranges, sizes, strict=True))
        }

    def index(self, e: Expr, env: dict[Expr, torch.Tensor], indirect: Sequence[torch.Tensor]) -> torch.Tensor:
        def look_up(s: Expr) -> torch.Tensor:
            if s.name.startswith("@"):
                return indirect[int(s.name[1:])]
            return env[s] if s in env else torch.tensor(self.sizes[s.name])

        return fold(
            e,
            const=torch.tensor,
            symbol=look_up,
            add=lambda xs: functools.reduce(operator.add, xs),
            mul=lambda xs: functools.reduce(operator.mul, xs),
            floordiv=lambda a, b: torch.div(a, b, rounding_mode="floor"),
            mod=torch.remainder,
            minimum=lambda xs: functools.reduce(torch.minimum, xs),
            maximum=lambda xs: functools.reduce(torch.maximum, xs),
        )

    def body(
        self,
        root: Scalar,
        env: dict[Expr, torch.Tensor],
        shape: Sequence[int],
        given: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        return self.values([root], env, given)[root].broadcast_to(list(shape))

    def values(
        self, roots: Sequence[Scalar], env: dict[Expr, torch.Tensor], given: Sequence[torch.Tensor] = ()
    ) -> dict[Scalar, torch.Tensor]:
        done: dict[Scalar, torch.Tensor] = {}
        for node in iterate_postorder(roots):
            if isinstance(node, Parameter):
                done[node] = given[node.position]
            else:
                done[node] = self.scalar(node, [done[x] for x in node.operands], env)
            assert done[node].dtype == torch_dtype(node.dtype), (node, node.dtype, done[node].dtype)
        return done

    def scalar(
        self, node: Scalar, operands: list[torch.Tensor], env: dict[Expr, torch.Tensor]
    ) -> torch.Tensor:
        match node:
            case Const():
                return torch.tensor(node.value, dtype=torch_dtype(node.dtype))
            case IndexValue():
                return self.index(node.expr, env, operands)
            case Load():
                return self.load(node, operands, env)
            case Op(op="cast" | "bitcast"):
                target = torch_dtype(node.dtype)
                return operands[0].to(target) if node.op == "cast" else operands[0].view(target)
            case Op():
                function = OPS.get(node.op) or getattr(torch, node.op)
                result: torch.Tensor = function(*operands)
                return result
        raise AssertionError(f"scalar {node}")

    def load(self, node: Load, operands: list[torch.Tensor], env: dict[Expr, torch.Tensor]) -> torch.Tensor:
        assert node.buffer not in self.dead, f"read of overwritten {node.buffer}"
        source = self.memory[node.buffer]
        assert source.dtype == torch_dtype(node.dtype)
        indirect = operands[: len(node.indirect)]
        index = [self.index(e, env, indirect) for e in node.index]
        mask = None if node.mask is None else operands[-1]
        if mask is not None:
            *index, mask = torch.broadcast_tensors(*index, mask)
            index = [torch.where(mask, i, 0) for i in index]
            if source.numel() == 0:
                assert not mask.any()
                return torch.full(mask.shape, node.other, dtype=source.dtype)
        if any(i.numel() == 0 for i in index):
            shape = torch.broadcast_shapes(*(i.shape for i in index))
            return torch.empty(shape, dtype=source.dtype)
        for i, n in zip(index, source.shape, strict=True):
            assert bool(((i >= 0) & (i < n)).all()), f"load of {node.buffer} out of bounds: {node.index}"
        value = source[tuple(index)] if index else source
        return (
            value if mask is None else torch.where(mask, value, torch.tensor(node.other, dtype=source.dtype))
        )

    def check(self, checks: Sequence[Check], ranges: Sequence[Expr]) -> None:
        env, shape = self.env(ranges), self.extents(ranges)
        for one in checks:
            if not bool(self.body(one.condition, env, shape).all()):
                raise getattr(builtins, one.error)(one.message)

    def extents(self, ranges: Sequence[Expr]) -> list[int]:
        return [0 if r.extent is None else self.size(r.extent) for r in ranges]

    def step(self, node: Node) -> None:
        match node:
            case Pointwise():
                self.check(node.checks, node.ranges)
                value = self.body(node.body, self.env(node.ranges), self.extents(node.ranges)).clone()
                assert node.body.dtype is node.output.dtype
                target = (
                    self.allocate(node.output)
                    if node.into is None
                    else self.take_over(node.into, node.output)
                )
                target.copy_(value)
            case Reduce():
                self.reduce(node)
            case Scan():
                self.scan(node)
            case Scatter():
                self.scatter(node)
            case Sort():
                value = self.body(node.body, self.env(node.ranges), self.extents(node.ranges))
                axis = node.ranges.index(node.axis)
                found = value.sort(dim=axis, descending=node.descending, stable=node.stable)
                count = value.shape[axis] if node.count is None else self.size(node.count)
                self.bind(node.outputs, [part.narrow(axis, 0, count) for part in found])
            case Contraction():
                self.contraction(node)
            case Attention() | AttentionGradient():
                self.attention(node)
            case Convolution():
                self.convolution(node)
            case View():
                assert node.source not in self.dead
                source, out = self.memory[node.source], node.output
                typed = (
                    source if source.dtype == torch_dtype(out.dtype) else source.view(torch_dtype(out.dtype))
                )
                shape, strides = [self.size(e) for e in out.shape], [self.size(e) for e in out.strides]
                offset = self.size(node.offset) + typed.storage_offset()
                self.memory[out.name] = typed.as_strided(shape, strides, offset)
            case Extern():
                self.extern(node)
            case Cond():
                branch = node.then if bool(self.memory[node.predicate]) else node.otherwise
                self.bind(node.outputs, self.region(branch, [self.argument(a) for a in node.operands]))
            case Loop():
                carried = [self.argument(a) for a in node.carried]
                extra = [self.argument(a) for a in node.extra]
                for number in range(0 if node.rounds is None else self.size(node.rounds)):
                    carried = self.region(node.body, [*carried, *extra, number])
                while node.condition and bool(self.region(node.condition, [*carried, *extra])[0]):
                    carried = self.region(node.body, [*carried, *extra])
                self.bind(node.outputs, carried)
                for mutation in node.mutates:
                    self.take_over(mutation.source, mutation.output)
            case AssertSize():
                if not getattr(operator, node.relation)(self.size(node.lhs), self.size(node.rhs)):
                    raise RuntimeError(node.message)
            case _:
                raise AssertionError(f"node {type(node).__name__}")

    def attention(self, node: Attention | AttentionGradient) -> None:
        memory = Memory(self.sizes)
        memory.tensors.update(self.memory)
        interpreter.step(node, memory, {})
        self.memory.update(
            {buffer.name: memory.tensors[buffer.name] for buffer in list_defined_buffers(node)}
        )
        self.sizes.update(memory.sizes)

    def region(self, graph: Graph, operands: list[Any]) -> list[Any]:
        return Evaluator(graph, self.constants).run(operands)

    def bind(self, buffers: Sequence[Buffer | None], values: list[Any]) -> None:
        for buffer, value in zip(buffers, values, strict=True):
            if buffer is not None:
                self.allocate(buffer).copy_(value)

    def reduce(self, node: Reduce) -> None:
        ranges = (*node.ranges, *node.axes)
        self.check(node.checks, ranges)
        value = self.body(node.body, self.env(ranges), self.extents(ranges))
        kept = len(node.ranges)
        flat = value.reshape([*value.shape[:kept], int(torch.tensor(value.shape[kept:]).prod())])
        match node.kind:
            case "sum" | "prod" | "argmax" | "argmin" | "any" | "all":
                results = [getattr(torch, node.kind)(flat, -1)]
                if node.kind in ("sum", "prod"):
                    results = [getattr(torch, node.kind)(flat, -1, dtype=flat.dtype)]
            case "max" | "min":
                results = [getattr(torch, f"a{node.kind}")(flat, -1)]
            case "welford":
                mean = flat.mean(-1)
                results = [mean, ((flat - mean.unsqueeze(-1)) ** 2).sum(-1)]
            case "online_softmax":
                top = flat.amax(-1)
                results = [top, (flat - top.unsqueeze(-1)).exp().sum(-1)]
            case _:
                raise AssertionError(node.kind)
        assert len(results) == len(node.outputs)
        for buffer, result in zip(node.outputs, results, strict=True):
            if buffer is not None:
                assert torch_dtype(buffer.dtype) == result.dtype
                self.allocate(buffer).copy_(result)

    def scan_by_function(self, node: Scan, function: Combine) -> None:
        axis, env, shape = node.ranges.index(node.axis), self.env(node.ranges), self.extents(node.ranges)
        values = [self.body(value, env, shape).movedim(axis, 0) for value in (node.body, *node.others)]
        points: list[list[torch.Tensor]] = []
        for element in zip(*(value.flip(0) if node.reverse else value for value in values), strict=True):
            points.append(self.combined(function, [*points[-1], *element]) if points else list(element))
        for buffer, result in zip(node.outputs, zip(*points, strict=True), strict=False):
            if buffer is not None:
                stacked = torch.stack(result)
                self.allocate(buffer).copy_((stacked.flip(0) if node.reverse else stacked).movedim(0, axis))

    def combined(self, function: Combine, given: list[torch.Tensor]) -> list[torch.Tensor]:
        done: dict[Scalar, torch.Tensor] = {}
        for node in iterate_postorder(function.results):
            if isinstance(node, Parameter):
                done[node] = given[node.position]
            else:
                done[node] = self.scalar(node, [done[x] for x in node.operands], {})
        return [done[result] for result in function.results]

    def scan(self, node: Scan) -> None:
        if isinstance(node.kind, Combine):
            self.scan_by_function(node, node.kind)
            return
        value = self.body(node.body, self.env(node.ranges), self.extents(node.ranges))
        axis = node.ranges.index(node.axis)
        functions: dict[str, Callable[..., Any]] = {
            "sum": torch.cumsum,
            "prod": torch.cumprod,
            "max": torch.cummax,
            "min": torch.cummin,
        }
        results = functions.get(node.kind, torch.logcumsumexp)(value, axis)
        for buffer, result in zip(
            node.outputs, [results] if isinstance(results, torch.Tensor) else results, strict=True
        ):
            if buffer is not None:
                self.allocate(buffer).copy_(result)

    def scatter(self, node: Scatter) -> None:
        self.check(node.checks, node.ranges)
        env, shape = self.env(node.ranges), self.extents(node.ranges)
        value = self.body(node.value, env, shape).clone()
        indirect = [self.body(x, env, shape) for x in node.indirect]
        index = [self.index(e, env, indirect).broadcast_to(shape).reshape(-1) for e in node.index]
        keep = torch.ones(value.numel(), dtype=torch.bool)
        if node.mask is not None:
            keep = self.body(node.mask, env, shape).reshape(-1)
        target = self.allocate(node.output) if node.into is None else self.take_over(node.into, node.output)
        places = tuple(i[keep] for i in index)
        flat = value.reshape(-1)[keep]
        if node.mode in ("store", "add"):
            target.index_put_(places, flat, accumulate=node.mode == "add")
            return
        combine = {"mul": torch.mul, "min": torch.minimum, "max": torch.maximum}[node.mode]
        for k in range(flat.numel()):
            at = tuple(int(p[k]) for p in places)
            target[at] = combine(target[at], flat[k])

    def contraction(self, node: Contraction) -> None:
        ranges, dtype = (*node.ranges, *node.axes), torch_dtype(node.accumulate)
        kept, shape = self.extents(node.ranges), self.extents(ranges)
        letters = "abcdefgh"[: len(ranges)]
        if 0 in shape:
            total = torch.zeros(kept, dtype=dtype)
        else:
            env = self.env(ranges)
            factors = [self.values((body,), env)[body].to(dtype) for body in (node.left, node.right)]
            left, right = (f.reshape([1] * (len(shape) - f.dim()) + list(f.shape)) for f in factors)
            rule = f"{letters},{letters}->{letters[: len(kept)]}"
            total = torch.einsum(rule, left, right).broadcast_to(kept)
        value = self.body(node.epilogue, self.env(node.ranges), kept, [total])
        self.allocate(node.output).copy_(value)

    def convolution(self, node: Convolution) -> None:
        """By torch's own operators, in `accumulate`: another way than the interpreter's."""
        dtype = torch_dtype(node.accumulate)
        given = [b for b in (node.value, node.weight, node.gradient) if b is not None]
        operands = [
            self.body(b.value, self.env(b.ranges), self.extents(b.ranges)).to(dtype).contiguous()
            for b in given
        ]
        lists = [[getattr(w, name) for w in node.windows] for name in ("stride", "padding", "dilation")]
        shape = (*lists, node.transposed, [w.extra for w in node.windows], node.groups)
        if node.gradient is None:
            assert node.epilogue is not None and node.outputs[0] is not None
            total = torch.ops.aten.convolution.default(*operands, None, *shape)
            ranges = node.epilogue.ranges
            value = self.body(node.epilogue.value, self.env(ranges), self.extents(ranges), [total])
            self.allocate(node.outputs[0]).copy_(value)
            return
        value, weight, gradient = operands
        wanted = [output is not None for output in node.outputs]
        found = torch.ops.aten.convolution_backward.default(
            gradient, value, weight, [gradient.shape[1]], *shape, wanted
        )
        for output, result in zip(node.outputs, found, strict=True):
            if output is not None:
                self.allocate(output).copy_(result)

    def argument(self, value: Any) -> Any:
        match value:
            case Ref(name):
                assert name not in self.dead, f"call with overwritten {name}"
                return self.memory[name]
            case Item(name):
                return self.memory[name].item()
            case ListValue(items):
                return [self.argument(item) for item in items]
            case Expr():
                return self.size(value)
            case DType():
                return torch_dtype(value)
            case TorchValue(attribute):
                return getattr(torch, attribute)
            case DeviceValue(device):
                return torch.device(device)
        return value

    def extern(self, node: Extern) -> None:
        namespace, packet, overload = (node.out_overload or node.target).split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        args = [self.argument(a) for a in node.args]
        kwargs = {k: self.argument(v) for k, v in node.kwargs}
        if node.out_overload:
            buffers = [b for b in node.outputs if isinstance(b, Buffer)]
            function(
                *args, **kwargs, **{n: self.allocate(b) for n, b in zip(node.out_names, buffers, strict=True)}
            )
            return
        results = function(*args, **kwargs)
        listed = [results] if node.single else list(results)
        if node.paths:
            listed = [functools.reduce(operator.getitem, path, results) for path in node.paths]
        for mutation in node.mutates:
            self.take_over(mutation.source, mutation.output)
        for declared, result in zip(node.outputs, listed, strict=False):
            if (
                isinstance(declared, Buffer) and result is not None
            ):  # an operator may leave a result undefined
                for extent, size in zip(declared.shape, result.shape, strict=True):
                    if extent.is_symbol:
                        self.sizes.setdefault(extent.name, size)
                expected = [self.size(e) for e in declared.strides]
                assert list(result.shape) == [self.size(e) for e in declared.shape], node.target
                assert result.numel() == 0 or all(
                    n == 1 or a == b for n, a, b in zip(result.shape, result.stride(), expected, strict=True)
                ), f"{node.target}: strides {result.stride()} declared {expected}"
                self.memory[declared.name] = result
            elif isinstance(declared, SymbolOutput):
                self.sizes[declared.symbol.name] = int(result)


def run(graph: Graph, constants: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of `graph` on `inputs`; overwritten inputs are changed in place."""
    return Evaluator(graph, constants).run(inputs)
