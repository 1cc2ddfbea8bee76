"""The reference interpreter of loop IR: what a graph means, in plain torch ops.

Every node is evaluated over its whole domain with index tensors. Slow, and made to be obviously right. Needs
torch (`pip install coilwork-ir[interpreter]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coilwork_ir.buffers import Argument, Buffer
from coilwork_ir.errors import InterpretError
from coilwork_ir.index import Expr, as_expr, extent_of
from coilwork_ir.interpretation.memory import Memory, Value, argument_value, call, flat, take_results
from coilwork_ir.interpretation.ops import reduce_last, scan_all, sort_last, torch_dtype
from coilwork_ir.interpretation.scalars import Domain, Evaluator, combine
from coilwork_ir.loops.access import read
from coilwork_ir.loops.attention.interpret import attend, derive_attention
from coilwork_ir.loops.convolutions import bias_gradient_of, contractions_of
from coilwork_ir.loops.nodes import (
    AssertSize,
    Attention,
    AttentionGradient,
    Check,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Graph,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
    While,
)
from coilwork_ir.scalar import substitute_ranges


def interpret_graph(
    graph: Graph, inputs: Sequence[Tensor | int], constants: Mapping[str, Tensor] | None = None
) -> list[Value]:
    """Run `graph` on `inputs`, in their declared layouts; `constants` holds the graph's constants by key.

    Inputs that the graph overwrites are overwritten. Results may share memory with inputs, as the graph says.

    Raises:
        InterpretError: inputs that do not fit the declarations, an access outside of a buffer.
        IndexError, RuntimeError: a run-time check of the graph failed.
    """
    return _run(graph, inputs, constants or {}, Memory())


def _run(
    graph: Graph, inputs: Sequence[object], constants: Mapping[str, Tensor], memory: Memory
) -> list[Value]:
    memory.enter(graph.inputs, inputs, graph.constants, constants)
    for node in graph.nodes:
        step(node, memory, constants)
    return [memory.output(output) for output in graph.outputs]


def step(node: Node, memory: Memory, constants: Mapping[str, Tensor]) -> None:
    """Do what `node` says."""
    match node:
        case Pointwise():
            values = _evaluator(node, node.ranges, node.checks, memory).full(node.body)
            if node.into is None:
                memory.allocate(node.output).copy_(values)
            else:
                # the value is complete before memory changes
                memory.view(node.output, memory.tensors[node.into], 0).copy_(values.clone())
        case Reduce():
            _reduce(node, memory)
        case Scan():
            evaluator = _evaluator(node, node.ranges, node.checks, memory)
            dim = node.ranges.index(node.axis)
            elements = [evaluator.full(value).movedim(dim, -1) for value in (node.body, *node.others)]
            results = scan_all(node.kind, elements, reverse=node.reverse)
            _store(node.outputs, [r.movedim(-1, dim) for r in results], memory)
        case Sort():
            body = _evaluator(node, node.ranges, node.checks, memory).full(node.body)
            dim = node.ranges.index(node.axis)
            results = sort_last(body.movedim(dim, -1), descending=node.descending)
            count = body.shape[dim] if node.count is None else memory.size(node.count)
            _store(node.outputs, [r[..., :count].movedim(-1, dim) for r in results], memory)
        case Scatter():
            _scatter(node, memory)
        case Contraction():
            _contract(node, memory)
        case Attention():
            attend(node, memory, memory.access(read(node)))
        case AttentionGradient():
            derive_attention(node, memory)
        case Convolution():
            for part in contractions_of(node):
                _contract(part, memory)
            if (bias := bias_gradient_of(node)) is not None:
                _reduce(bias, memory)
        case View():
            memory.view(node.output, memory.tensors[node.source], memory.size(node.offset))
        case Extern():
            returned = call(node.target, node.args, dict(node.kwargs), memory, node.single, node.paths)
            take_results(node.outputs, node.binds, returned, memory)
            for mutation in node.mutates:
                memory.view(mutation.output, memory.tensors[mutation.source], 0)
        case Cond():
            chosen = node.then if bool(memory.tensors[node.predicate].item()) else node.otherwise
            _settle_all(
                node.outputs, _run_nested(chosen, _values(node.operands, memory), memory, constants), memory
            )
        case While():
            _loop(node, memory, constants)
        case AssertSize():
            check_size(memory.size(node.lhs), node.relation, memory.size(node.rhs), node.message)


def check_size(lhs: int, relation: str, rhs: int, message: str) -> None:
    """Raise RuntimeError with `message` unless `lhs relation rhs`."""
    holds = {"eq": lhs == rhs, "ne": lhs != rhs, "lt": lhs < rhs, "le": lhs <= rhs}
    if not holds[relation]:
        raise RuntimeError(message)


# Computed nodes


def _evaluator(node: Node, ranges: Sequence[Expr], checks: Sequence[Check], memory: Memory) -> Evaluator:
    evaluator = Evaluator(Domain(ranges, memory.sizes), memory.access(read(node)))
    evaluator.check(checks)
    return evaluator


def _reduce(node: Reduce, memory: Memory) -> None:
    evaluator = _evaluator(node, (*node.ranges, *node.axes), node.checks, memory)
    body = evaluator.full(node.body)
    kept = body.shape[: len(node.ranges)]
    count = 1
    for size in body.shape[len(node.ranges) :]:
        count *= size
    _store(node.outputs, reduce_last(node.kind, body.reshape((*kept, count))), memory)


def _contract(node: Contraction, memory: Memory) -> None:
    if node.groups is None:
        memory.allocate(node.output).copy_(_contracted(node, memory, None))
        return
    groups, dims = node.groups, (*node.ranges, *node.axes)
    ends = memory.tensors[groups.ends].to(torch.int64)
    starts = torch.cat([ends.new_zeros(1), ends])[:-1]
    points = torch.arange(memory.size(extent_of(groups.along)), device=ends.device)
    # [group, point]
    member = (points >= starts[:, None]) & (points < ends[:, None])
    if groups.along in node.axes:
        inside = _spread(member, (dims.index(groups.index), dims.index(groups.along)), len(dims))
        memory.allocate(node.output).copy_(_contracted(node, memory, inside))
        return
    output = memory.allocate(node.output)
    for number in range(len(ends)):
        known = {groups.index: as_expr(number)}
        left, right, epilogue = substitute_ranges((node.left, node.right, node.epilogue), known)
        product = replace(node, left=left, right=right, epilogue=epilogue)
        mine = _spread(member[number], (node.ranges.index(groups.along),), len(node.ranges))
        output.copy_(torch.where(mine, _contracted(product, memory, None), output))


def _spread(value: Tensor, places: Sequence[int], dims: int) -> Tensor:
    """`value`, whose dimensions are those at `places` among `dims`, with size 1 along the others."""
    if list(places) != sorted(places):
        value, places = value.t(), sorted(places)
    shape = [1] * dims
    for place, size in zip(places, value.shape, strict=True):
        shape[place] = size
    return value.reshape(shape)


def _contracted(node: Contraction, memory: Memory, inside: Tensor | None) -> Tensor:
    """The results of `node`, whose sums are over those of the points that are `inside`."""
    access = memory.access(read(node))
    domain, results = Domain((*node.ranges, *node.axes), memory.sizes), Domain(node.ranges, memory.sizes)
    dtype = torch_dtype(node.accumulate)
    if domain.empty:
        total = torch.zeros(results.shape, dtype=dtype)
    else:
        evaluator = Evaluator(domain, access)
        # size 1 along the ranges of the other factor
        factors = [evaluator.value(factor).to(dtype) for factor in (node.left, node.right)]
        left, right = (f.reshape((1,) * (len(domain.shape) - f.dim()) + f.shape) for f in factors)
        if inside is not None:
            left, right = (torch.where(inside, f, f.new_zeros(())) for f in (left, right))
        every = list(range(len(domain.shape)))
        total = torch.einsum(left, every, right, every, every[: len(node.ranges)]).expand(results.shape)
    return Evaluator(results, access, (total,)).full(node.epilogue)


def _store(outputs: Sequence[Buffer | None], values: Sequence[Tensor], memory: Memory) -> None:
    for output, value in zip(outputs, values, strict=False):
        if output is not None:
            memory.allocate(output).copy_(value)


def _scatter(node: Scatter, memory: Memory) -> None:
    if node.into is None:
        # nothing that the node reads
        memory.allocate(node.output)
    old = node.output.name if node.into is None else node.into
    evaluator = Evaluator(Domain(node.ranges, memory.sizes), memory.access((*read(node), old)))
    evaluator.check(node.checks)
    if evaluator.domain.empty:
        memory.view(node.output, memory.tensors[old], 0)
        return
    value = evaluator.full(node.value).clone()
    mask = None if node.mask is None else evaluator.full(node.mask)
    offsets = evaluator.offsets(old, node.index, node.indirect, mask)
    if node.covers:
        _check_covered(node, evaluator.offsets(old, node.index, node.indirect, None))
    target = memory.view(node.output, memory.tensors[old], 0)
    combine(flat(target), offsets, value, node.mode, mask)


def _check_covered(node: Scatter, offsets: Tensor) -> None:
    """The points of a scatter that covers its output, which is dense, store each element once."""
    found = offsets.reshape(-1).sort().values
    if not found.equal(torch.arange(found.numel())):
        raise InterpretError("covers", f"the scatter to %{node.output.name} leaves elements out")


# Regions


def _values(operands: Sequence[Argument], memory: Memory) -> list[object]:
    return [argument_value(operand, memory) for operand in operands]


def _run_nested(
    graph: Graph, inputs: Sequence[object], memory: Memory, constants: Mapping[str, Tensor]
) -> list[Value]:
    return _run(graph, inputs, constants, Memory(memory.sizes, memory.device))


def _settle_all(outputs: Sequence[Buffer], values: Sequence[Value], memory: Memory) -> None:
    for output, value in zip(outputs, values, strict=True):
        if not isinstance(value, Tensor):
            raise InterpretError("result", f"%{output.name} is {value!r}, not a tensor")
        # a branch may return its operand; the result of the region is memory of its own
        memory.settle(output, value.clone())


def _loop(node: While, memory: Memory, constants: Mapping[str, Tensor]) -> None:
    carried = _values(node.carried, memory)
    extra = _values(node.extra, memory)
    while True:
        (go_on,) = _run_nested(node.condition, [*carried, *extra], memory, constants)
        if not isinstance(go_on, Tensor):
            raise InterpretError("result", f"the condition of a loop is {go_on!r}, not a tensor")
        if not bool(go_on.item()):
            break
        carried = list(_run_nested(node.body, [*carried, *extra], memory, constants))
    finals = [value if isinstance(value, Tensor | int) else None for value in carried]
    _settle_all(node.outputs, finals, memory)
    for mutation in node.mutates:
        memory.view(mutation.output, memory.tensors[mutation.source], 0)
