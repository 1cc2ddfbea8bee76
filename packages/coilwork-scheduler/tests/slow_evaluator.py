"""A slow evaluator of loop graphs and schedules: plain Python, point by point.

Kernels are run as generated code runs them: pass after pass, every load reading memory as it is at that
moment, so that a schedule which overwrites something too early gives wrong numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coilwork_ir.buffers import Buffer, Constant, Ref
from coilwork_ir.index import Expr, evaluate
from coilwork_ir.kernels import Kernel, KernelCall, Schedule, Store
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort, View
from coilwork_ir.ops import ReduceKind, ScanKind
from coilwork_ir.scalar import Combine, Const, IndexValue, Load, Op, Scalar, iterate_postorder
from coilwork_ir.scalar import Reduce as ReduceValue
from coilwork_ir.scalar import Scan as ScanValue
from coilwork_ir.scalar import Sort as SortValue

Number = float | int | bool
OPS: Mapping[str, Callable[..., Number]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": abs,
    "minimum": min,
    "maximum": max,
    "exp": math.exp,
    "tanh": math.tanh,
    "erf": math.erf,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "where": lambda c, a, b: a if c else b,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "bitwise_and": lambda a, b: a & b,
}


@dataclass
class Memory:
    """Storage per name: views share the list."""

    cells: dict[str, tuple[list[Number], int, Buffer]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def define(self, buffer: Buffer, values: Sequence[Number] | None = None) -> None:
        span = max(evaluate(buffer.span, self.sizes), 0)
        cells = [math.nan] * span if values is None else list(values)
        assert len(cells) == span
        self.cells[buffer.name] = (cells, 0, buffer)

    def alias(self, buffer: Buffer, source: str, offset: int = 0) -> None:
        cells, start, _ = self.cells[source]
        self.cells[buffer.name] = (cells, start + offset, buffer)

    def place(self, name: str, index: Sequence[int]) -> int:
        _, start, buffer = self.cells[name]
        strides = [evaluate(s, self.sizes) for s in buffer.strides]
        return start + sum(i * s for i, s in zip(index, strides, strict=True))

    def values(self, name: str) -> list[Number]:
        cells, _, buffer = self.cells[name]
        extents = [range(evaluate(e, self.sizes)) for e in buffer.shape]
        return [cells[self.place(name, point)] for point in itertools.product(*extents)]


def value_of(
    node: Scalar,
    env: Mapping[str, int],
    read: Callable[[Load, list[int]], Number],
    known: dict[Scalar, Number],
) -> Number:
    """`node` at one point; values in `known` are taken as they are."""
    if node in known:
        return known[node]

    def inner(scalar: Scalar) -> Number:
        return value_of(scalar, env, read, known)

    result: Number
    match node:
        case Const():
            result = node.value
        case IndexValue():
            extra = {f"@{k}": int(inner(v)) for k, v in enumerate(node.operands)}
            result = evaluate(node.expr, {**env, **extra})
        case Load():
            if node.mask is not None and not inner(node.mask):
                result = node.other
            else:
                extra = {f"@{k}": int(inner(v)) for k, v in enumerate(node.indirect)}
                result = read(node, [evaluate(e, {**env, **extra}) for e in node.index])
        case Op(op="cast"):
            given = inner(node.operands[0])
            if node.dtype.is_float:
                result = float(given)
                if node.dtype.is_low_precision:
                    result = round(result, 2)  # visibly narrower
            else:
                result = bool(given) if node.dtype.is_bool else int(given)
        case Op():
            result = OPS[node.op](*(inner(o) for o in node.operands))
        case _:
            raise AssertionError(f"{node!r} must be known")
    known[node] = result
    return result


def combine(kind: ReduceKind | ScanKind | Combine, values: Sequence[Number], output: int) -> Number:
    """Result `output` of the reduction `kind`."""
    mean = sum(values) / len(values) if values else math.nan
    match kind:
        case "sum":
            return sum(values)
        case "max":
            return max(values)
        case "min":
            return min(values)
        case "argmax":
            return max(range(len(values)), key=lambda k: (values[k], -k))
        case "welford":
            return mean if output == 0 else sum((v - mean) ** 2 for v in values)
        case "online_softmax":
            return max(values) if output == 0 else sum(math.exp(v - max(values)) for v in values)
    raise AssertionError(kind)


def points(symbols: Sequence[Expr], sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Environments for every point of the domain, row-major."""
    extents = []
    for entry in symbols:
        assert entry.extent is not None
        extents.append(range(evaluate(entry.extent, sizes)))
    names = [entry.name for entry in symbols]
    for point in itertools.product(*extents):
        yield {**sizes, **dict(zip(names, point, strict=True))}


def start(
    inputs: Sequence[object],
    constants: Sequence[Constant],
    given: Mapping[str, Sequence[Number]],
    sizes: Mapping[str, int],
) -> Memory:
    memory = Memory(sizes=dict(sizes))
    for entry in (*inputs, *(c.buffer for c in constants)):
        if isinstance(entry, Buffer):
            memory.define(entry, given[entry.name])
    return memory


def run_extern(memory: Memory, node: Extern) -> None:
    """Externals of the tests: `test.neg` makes a new buffer, `test.double_` works in place, `test.draw` is
    random.
    """
    memory.log.append(node.target)
    names = [a.name for a in node.args if isinstance(a, Ref)]
    if node.target == "test.double_":
        (mutation,) = node.mutates
        cells, _, buffer = memory.cells[mutation.source]
        for point in itertools.product(*(range(evaluate(e, memory.sizes)) for e in buffer.shape)):
            cells[memory.place(mutation.source, point)] *= 2
        memory.alias(mutation.output, mutation.source)
        return
    for output in node.outputs:
        if not isinstance(output, Buffer):
            continue
        memory.define(output)
        extents = [range(evaluate(e, memory.sizes)) for e in output.shape]
        if node.target == "test.neg":
            made = [-v for v in memory.values(names[0])]
        else:
            assert node.target.startswith("test.draw"), node.target
            draws = sum(1 for call in memory.log if call.startswith("test.draw"))
            made = [draws + 0.5 * k for k in range(len(list(itertools.product(*extents))))]
        for point, value in zip(itertools.product(*extents), made, strict=True):
            memory.cells[output.name][0][memory.place(output.name, point)] = value


def run_node(memory: Memory, node: Node) -> None:
    """One loop node: every value first, then the writes."""

    def read(load: Load, index: list[int]) -> Number:
        return memory.cells[load.buffer][0][memory.place(load.buffer, index)]

    writes: list[tuple[str, list[int], Number, str]] = []
    match node:
        case View():
            memory.alias(node.output, node.source, evaluate(node.offset, memory.sizes))
            return
        case Extern():
            run_extern(memory, node)
            return
        case Pointwise():
            for env in points(node.ranges, memory.sizes):
                index = [env[r.name] for r in node.ranges]
                writes.append((node.output.name, index, value_of(node.body, env, read, {}), "store"))
            if node.into is None:
                memory.define(node.output)
            else:
                memory.alias(node.output, node.into)
        case Reduce():
            for env in points(node.ranges, memory.sizes):
                row = [value_of(node.body, {**env, **e}, read, {}) for e in points(node.axes, memory.sizes)]
                index = [env[r.name] for r in node.ranges]
                for k, b in enumerate(node.outputs):
                    if b is not None:
                        writes.append((b.name, index, combine(node.kind, row, k), "store"))
            for b in node.outputs:
                if b is not None:
                    memory.define(b)
        case Scan():
            (output,) = [b for b in node.outputs if b is not None]
            memory.define(output)
            for env in points(node.ranges, memory.sizes):
                run = range(env[node.axis.name] + 1)
                row = [value_of(node.body, {**env, node.axis.name: k}, read, {}) for k in run]
                writes.append(
                    (output.name, [env[r.name] for r in node.ranges], combine(node.kind, row, 0), "store")
                )
        case Sort():
            writes += sorted_rows(memory, node, read)
        case Scatter():
            for env in points(node.ranges, memory.sizes):
                if node.mask is not None and not value_of(node.mask, env, read, {}):
                    continue
                extra = {f"@{k}": int(value_of(v, env, read, {})) for k, v in enumerate(node.indirect)}
                index = [evaluate(e, {**env, **extra}) for e in node.index]
                writes.append((node.output.name, index, value_of(node.value, env, read, {}), node.mode))
            if node.into is None:
                memory.define(node.output)
            else:
                memory.alias(node.output, node.into)
        case _:
            raise AssertionError(f"{node!r}")
    for name, index, value, mode in writes:
        cells = memory.cells[name][0]
        place = memory.place(name, index)
        cells[place] = value if mode == "store" else cells[place] + value


def in_order(row: Sequence[Number], *, descending: bool) -> list[tuple[Number, int]]:
    """The elements with their positions; equal ones stay as they were."""
    return sorted(((v, k) for k, v in enumerate(row)), key=lambda pair: pair[0], reverse=descending)


def sorted_rows(
    memory: Memory, node: Sort, read: Callable[[Load, list[int]], Number]
) -> list[tuple[str, list[int], Number, str]]:
    """What a sort writes; its outputs are defined."""
    writes: list[tuple[str, list[int], Number, str]] = []
    for output in node.outputs:
        if output is not None:
            memory.define(output)
    assert node.axis.extent is not None
    length = evaluate(node.axis.extent, memory.sizes)
    count = length if node.count is None else evaluate(node.count, memory.sizes)
    for env in points(node.ranges, memory.sizes):
        place = env[node.axis.name]
        if place >= count:
            continue
        row = [value_of(node.body, {**env, node.axis.name: k}, read, {}) for k in range(length)]
        for output, value in zip(node.outputs, in_order(row, descending=node.descending)[place], strict=True):
            if output is not None:
                writes.append((output.name, [env[r.name] for r in node.ranges], value, "store"))
    return writes


def run_kernel(memory: Memory, kernel: Kernel, call: KernelCall, buffers: Mapping[str, Buffer]) -> None:
    """One launch, pass by pass."""
    into = dict(call.into)
    for arg, name in zip(kernel.args, call.args, strict=True):
        if name in into:
            memory.alias(buffers[name], into[name])
        elif arg.role != "in":
            memory.define(buffers[name])
    actual = dict(zip((a.name for a in kernel.args), call.args, strict=True))
    sizes = {s.name: evaluate(e, memory.sizes) for s, e in zip(kernel.sizes, call.sizes, strict=True)}

    def cell(name: str, offset: int) -> tuple[list[Number], int]:
        cells, first, _ = memory.cells[actual[name]]
        assert 0 <= first + offset < len(cells), f"{kernel.name}: {name}[{offset}]"
        return cells, first + offset

    def read(load: Load, index: list[int]) -> Number:
        cells, place = cell(load.buffer, index[0])
        return cells[place]

    kept = _hand_over(memory, kernel, call, actual)
    if kernel.combined is None:
        _run_points(kernel, sizes, read, cell)
    else:
        body = kernel.combined.body
        whole = dict(actual)
        # any order must do
        for member in reversed(kernel.combined.members):
            actual.update(zip((a.name for a in body.args), (whole[n] for n in member.args), strict=True))
            own = {s.name: evaluate(e, sizes) for s, e in zip(body.sizes, member.sizes, strict=True)}
            _run_points(body, own, read, cell)
    memory.cells.update(kept)


def _run_points(
    kernel: Kernel,
    sizes: Mapping[str, int],
    read: Callable[[Load, list[int]], Number],
    cell: Callable[[str, int], tuple[list[Number], int]],
) -> None:
    parallel = [r.symbol for r in kernel.ranges if r.kind == "parallel"]
    sequential = [r.symbol for r in kernel.ranges if r.kind == "sequential"]
    reduced = [r.symbol for r in kernel.ranges if r.kind == "reduction"]
    values = [part for store in kernel.stores for part in parts_of(store)]
    depth: dict[Scalar, int] = {}
    walks: dict[Scalar, bool] = {}
    for node in iterate_postorder(values):
        below = max((depth[o] for o in node.operands), default=0)
        # a scan or sort gives its values in the pass that reads its operand
        depth[node] = below + isinstance(node, ReduceValue)
        exprs = node.index if isinstance(node, Load) else (node.expr,) if isinstance(node, IndexValue) else ()
        own = any(not e.free_symbols.isdisjoint(reduced) for e in exprs) or isinstance(
            node, ScanValue | SortValue
        )
        walks[node] = not isinstance(node, ReduceValue) and (own or any(walks[o] for o in node.operands))
    columns = [n for n in depth if isinstance(n, ReduceValue) and sequential and n.axes == tuple(sequential)]
    late: set[Scalar] = set(columns)
    for node in iterate_postorder(values):
        if not late.isdisjoint(node.operands):
            late.add(node)
    afterwards = [s for s in kernel.stores if not late.isdisjoint(parts_of(s))]
    stores = [s for s in kernel.stores if s not in afterwards]
    depth = {n: d for n, d in depth.items() if n not in late}
    launch = _Launch(stores, reduced, depth, walks, read, cell, columns)
    for group in points(parallel, sizes):
        launch.gathered.clear()
        for row in points(sequential, group):
            launch.run(row)
        for k, env in enumerate(points(reduced, group)):
            sums: dict[Scalar, Number] = {
                n: combine(n.kind, launch.gathered.get((n, k), []), n.output) for n in columns
            }
            launch.write(afterwards, env, sums)


def _hand_over(
    memory: Memory, kernel: Kernel, call: KernelCall, actual: Mapping[str, str]
) -> dict[str, tuple[list[Number], int, Buffer]]:
    """Let outputs be written over inputs as the kernel says they may; returns those inputs as they were."""
    kept: dict[str, tuple[list[Number], int, Buffer]] = {}
    done: set[str] = set()
    for out_arg, in_arg in kernel.aliasing:
        out, source = actual[out_arg], actual[in_arg]
        if out in done or source in kept or call.args.count(source) > 1:
            continue
        cells, first, buffer = memory.cells[source]
        made = memory.cells[out][2]
        shared = cells[first : first + evaluate(buffer.span, memory.sizes)]
        kept[source] = memory.cells[source]
        done.add(out)
        memory.cells[source], memory.cells[out] = (shared, 0, buffer), (shared, 0, made)
    return kept


@dataclass
class _Launch:
    """The passes of a kernel over one point of its parallel and sequential ranges."""

    stores: Sequence[Store]
    reduced: Sequence[Expr]
    depth: Mapping[Scalar, int]
    walks: Mapping[Scalar, bool]
    read: Callable[[Load, list[int]], Number]
    cell: Callable[[str, int], tuple[list[Number], int]]
    columns: Sequence[ReduceValue] = ()
    # what is reduced along sequential points, by the reduced point
    gathered: dict[tuple[Scalar, int], list[Number]] = field(default_factory=dict)

    def run(self, row: Mapping[str, int]) -> None:
        rows = list(points(self.reduced, row))
        settled: dict[Scalar, Number] = {}
        settled_rows: list[dict[Scalar, Number]] = [{} for _ in rows]
        for level in range(max(self.depth.values(), default=0) + 1):
            now = [s for s in self.stores if max(self.depth[p] for p in parts_of(s)) == level]
            walking = [s for s in now if self.walking(s)]
            self.write([s for s in now if s not in walking], row, dict(settled))
            combined = [n for n, d in self.depth.items() if isinstance(n, ReduceValue) and d == level + 1]
            scans = [n for n, d in self.depth.items() if isinstance(n, ScanValue | SortValue) and d == level]
            for scan in scans:
                found = [
                    value_of(scan.operands[0], env, self.read, {**settled, **settled_rows[k]})
                    for k, env in enumerate(rows)
                ]
                for k in range(len(rows)):
                    if isinstance(scan, SortValue):
                        settled_rows[k][scan] = in_order(found, descending=scan.descending)[k][scan.output]
                    else:
                        settled_rows[k][scan] = combine(scan.kind, found[: k + 1], 0)
            gathered: dict[Scalar, list[Number]] = {n: [] for n in combined}
            for k, env in enumerate(rows):
                known = {**settled, **settled_rows[k]}
                for n in combined:
                    gathered[n].append(value_of(n.operands[0], env, self.read, known))
                for n in self.columns:
                    if self.depth[n.operands[0]] == level:
                        values = self.gathered.setdefault((n, k), [])
                        values.append(value_of(n.operands[0], env, self.read, known))
                self.write(walking, env, known)
            for n in combined:
                settled[n] = combine(n.kind, gathered[n], n.output)

    def walking(self, store: Store) -> bool:
        return any(self.walks[p] for p in parts_of(store)) or not store.index.free_symbols.isdisjoint(
            self.reduced
        )

    def write(self, stores: Sequence[Store], env: Mapping[str, int], known: dict[Scalar, Number]) -> None:
        made = []
        for store in stores:
            if store.mask is not None and not value_of(store.mask, env, self.read, known):
                continue
            extra = {f"@{k}": int(value_of(v, env, self.read, known)) for k, v in enumerate(store.indirect)}
            offset = evaluate(store.index, {**env, **extra})
            made.append((store, offset, value_of(store.value, env, self.read, known)))
        for store, offset, value in made:
            cells, place = self.cell(store.buffer, offset)
            cells[place] = value if store.mode == "store" else cells[place] + value


def parts_of(store: Store) -> tuple[Scalar, ...]:
    """Every scalar graph of `store`."""
    return (store.value, *store.indirect, *(() if store.mask is None else (store.mask,)))


def evaluate_graph(
    graph: Graph, given: Mapping[str, Sequence[Number]], sizes: Mapping[str, int]
) -> tuple[list[list[Number]], list[list[Number]], list[str]]:
    """Results, final contents of the inputs, and the calls made."""
    memory = start(graph.inputs, graph.constants, given, sizes)
    for node in graph.nodes:
        run_node(memory, node)
    return _result(memory, graph)


def evaluate_schedule(
    schedule: Schedule, given: Mapping[str, Sequence[Number]], sizes: Mapping[str, int]
) -> tuple[list[list[Number]], list[list[Number]], list[str]]:
    """As `evaluate_graph`, of a schedule."""
    memory = start(schedule.inputs, schedule.constants, given, sizes)
    buffers = {b.name: b for b in schedule.buffers}
    kernels = {k.name: k for k in schedule.kernels}
    for step in schedule.steps:
        if isinstance(step, KernelCall):
            run_kernel(memory, kernels[step.kernel], step, buffers)
        else:
            assert isinstance(step, Extern | View), step
            run_node(memory, step)
    return _result(memory, schedule)


def _result(
    memory: Memory, whole: Graph | Schedule
) -> tuple[list[list[Number]], list[list[Number]], list[str]]:
    outputs = [memory.values(o.name) for o in whole.outputs if isinstance(o, Ref)]
    inputs = [memory.cells[i.name][0] for i in whole.inputs if isinstance(i, Buffer)]
    return outputs, inputs, memory.log


def well_formed(kernel: Kernel) -> None:
    """Every symbol is a range, a size or a placeholder with a value; reductions run along all reduced or all
    sequential ranges.
    """
    if kernel.combined is not None:
        well_formed(kernel.combined.body)
        return
    ranges = [r.symbol for r in kernel.ranges]
    reduced = tuple(r.symbol for r in kernel.ranges if r.kind == "reduction")
    sequential = tuple(r.symbol for r in kernel.ranges if r.kind == "sequential")
    known = {*ranges, *kernel.sizes}
    assert len({s.name for s in known}) == len(known)
    args = {arg.name: arg for arg in kernel.args}

    def check(expr: Expr, indirect: Sequence[Scalar]) -> None:
        extra = expr.free_symbols - known
        assert {s.name for s in extra} <= {f"@{k}" for k in range(len(indirect))}, (
            f"{expr!r} in {kernel.name}"
        )

    for entry in ranges:
        assert entry.extent is not None and entry.extent.free_symbols <= set(kernel.sizes)
    for store in kernel.stores:
        check(store.index, store.indirect)
        assert args[store.buffer].role != "in" and store.value.dtype is args[store.buffer].dtype
        for node in iterate_postorder(parts_of(store)):
            match node:
                case Load():
                    check(node.index[0], node.indirect)
                    assert len(node.index) == 1 and args[node.buffer].role != "out"
                case IndexValue():
                    check(node.expr, node.operands)
                case ReduceValue():
                    assert node.axes in (reduced, sequential or reduced)
                case _:
                    pass
