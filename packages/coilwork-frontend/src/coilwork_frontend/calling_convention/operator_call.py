"""Run the operators of a compiled graph one by one, for calls that its kernels cannot serve.

Kernels read memory. Tensors without memory (fake, functional, batched, meta), or a dispatch mode that watches
operators, need torch's own operators. Such calls are rare, so the graph is kept as a row per node, which is
much smaller than the graph, and the rows are interpreted. Rows of torch's own operators can be written down,
and read when the first call needs them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx
from torch.fx.node import map_aggregate, map_arg

from coilwork_frontend.torch_compat.operators import get_namespace

Call = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class _Value:
    """The value of a node, by the node's number."""

    number: int


@dataclass(frozen=True, slots=True)
class _Row:
    """A node.

    Attributes:
        op, target: as in `fx.Node`.
        args, kwargs: the same with a `_Value` for each node.
        ends: numbers of the nodes whose values have their last use here.
    """

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    ends: tuple[int, ...]


def make_operator_call(gm: fx.GraphModule) -> Call:
    """Return a call that runs the operators of `gm` for one list of inputs, which it empties. It keeps no
    node."""
    rows = _record(gm.graph)
    roots = {row.target.partition(".")[0] for row in rows if row.op in ("get_attr", "call_module")}
    return _run_rows(rows, {name: getattr(gm, name) for name in roots})


def _run_rows(rows: Sequence[_Row], owner: Mapping[str, Any]) -> Call:
    """Return a call that runs `rows`; `owner` has what they name by the first part of the name."""

    def call(args: list[Any]) -> Sequence[Any]:
        inputs = iter(tuple(args))
        args.clear()
        values: list[Any] = []
        for row in rows[:-1]:
            values.append(next(inputs) if row.op == "placeholder" else _run(row, values, owner))
            for number in row.ends:
                values[number] = None
        results: Sequence[Any] = _fill(rows[-1].args, values)[0]
        return results

    return call


def _record(graph: fx.Graph) -> tuple[_Row, ...]:
    """Return the rows of `graph`, in its order; the last is its output."""
    nodes = tuple(graph.nodes)
    numbers = {node: number for number, node in enumerate(nodes)}
    last = {node: user for user in nodes for node in user.all_input_nodes}
    ends: dict[fx.Node, list[int]] = {}
    for node in nodes:
        # a node without users ends at once
        ends.setdefault(last.get(node, node), []).append(numbers[node])

    def refer(node: fx.Node) -> Any:
        return _Value(numbers[node])

    return tuple(
        _Row(
            node.op,
            node.target,
            map_arg(node.args, refer),
            map_arg(node.kwargs, refer),
            tuple(ends.get(node, ())),
        )
        for node in nodes
    )


def _fill(template: Any, values: Sequence[Any]) -> Any:
    def look_up(item: Any) -> Any:
        return values[item.number] if isinstance(item, _Value) else item

    return map_aggregate(template, look_up)


def _run(row: _Row, values: Sequence[Any], owner: Mapping[str, Any]) -> Any:
    args, kwargs = _fill(row.args, values), _fill(row.kwargs, values)
    match row.op:
        case "get_attr":
            return _attribute(row.target, owner)
        case "call_module":
            return _attribute(row.target, owner)(*args, **kwargs)
        case "call_method":
            return getattr(args[0], row.target)(*args[1:], **kwargs)
        case _:
            return row.target(*args, **kwargs)


def _attribute(target: str, owner: Mapping[str, Any]) -> Any:
    root, *path = target.split(".")
    return functools.reduce(getattr, path, owner[root])


# ---- Rows as JSON ----


_OPERATORS: Final = ("getitem", "add", "mul", "sub", "floordiv", "truediv", "mod", "neg", "pow")
_RELATIONS: Final = ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_")
_SYMBOLIC: Final = ("sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "sym_sum", "sym_ite")
# Arithmetic on sizes.
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {f"operator.{name}": getattr(operator, name) for name in (*_OPERATORS, *_RELATIONS)}
    | {f"torch.{name}": getattr(torch, name) for name in _SYMBOLIC}
)
# Operators that call nested graphs, and take them as `fx.GraphModule`.
_NESTING: Final = ("associative_scan", "cond", "flex_attention", "map_impl", "scan", "while_loop")
_CONSTANTS: Final = (torch.dtype, torch.layout, torch.memory_format)


class UnwritableError(Exception):
    """A graph calls something that is none of torch's own operators, or with other arguments than data."""


def write_rows(gm: fx.GraphModule) -> list[Any]:
    """Return the operators of `gm` as JSON, from which `read_rows` makes their call.

    Raises:
        UnwritableError: the graph holds something that has no form as data.
    """
    return [_write_row(row, gm) for row in _record(gm.graph)]


def _write_row(row: _Row, gm: fx.GraphModule) -> list[Any]:
    nested = functools.reduce(getattr, row.target.split("."), gm) if row.op == "get_attr" else None
    if isinstance(nested, fx.GraphModule):
        return ["graph", row.target, write_rows(nested), None, list(row.ends)]
    return [row.op, _write_target(row), _write(row.args), _write(dict(row.kwargs)), list(row.ends)]


def read_rows(data: Sequence[Any], constants: Mapping[str, torch.Tensor]) -> Call:
    """Return the call of operators that were written; the first call reads them. `constants` are tensors that
    they name."""

    @functools.cache
    def read() -> Call:
        nested = {target: _make_graph(rows) for op, target, rows, _, _ in data if op == "graph"}
        return _run_rows(_read_all(data), {**constants, **nested})

    return lambda args: read()(args)


def _read_all(data: Sequence[Any]) -> list[_Row]:
    return [
        _Row("get_attr", target, (), {}, tuple(ends))
        if op == "graph"
        else _Row(op, _read_target(op, target), _read(args), _read(kwargs), tuple(ends))
        for op, target, args, kwargs, ends in data
    ]


def _make_graph(data: Sequence[Any]) -> fx.GraphModule:
    """Return the graph that was written; operators that call graphs take no other callables."""
    graph, nodes = fx.Graph(), list[fx.Node]()
    nested = {target: _make_graph(rows) for op, target, rows, _, _ in data if op == "graph"}
    for row in _read_all(data):
        args, kwargs = _fill(row.args, nodes), _fill(dict(row.kwargs), nodes)
        nodes.append(graph.create_node(row.op, row.target, args, kwargs))
    return fx.GraphModule(nested, graph)


def _write_target(row: _Row) -> str:
    if row.op in ("placeholder", "output", "get_attr") and "." not in str(row.target):
        return str(row.target)
    target = row.target
    for module in ("operator", "torch") if row.op == "call_function" else ():
        name = f"{module}.{getattr(target, '__name__', '')}"
        if _FUNCTIONS.get(name) is target:
            return name
    if row.op == "call_function" and get_namespace(target) in ("aten", "prims"):
        return str(target)
    if row.op == "call_function" and get_namespace(target) == "higher_order" and str(target) in _NESTING:
        return f"higher_order.{target}"
    raise UnwritableError(f"{row.op} of {row.target}")


def _read_target(op: str, name: str) -> Any:
    if op != "call_function":
        return name
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    return functools.reduce(getattr, name.split("."), torch.ops)


def _write(value: Any) -> Any:
    """Return an argument as JSON: a list that begins with its kind, or the number or text itself."""
    match value:
        case _Value():
            return ["value", value.number]
        case None | bool() | str():
            return value
        case int() if type(value) is int:
            return value
        case float():
            return ["float", value.hex()]
        case complex():
            return ["complex", value.real.hex(), value.imag.hex()]
        case list() | tuple():
            return ["tuple" if isinstance(value, tuple) else "list", *map(_write, value)]
        case dict():
            return ["dict", {name: _write(one) for name, one in value.items()}]
        case torch.device():
            return ["device", str(value)]
        case _ if isinstance(value, _CONSTANTS):
            return ["torch", str(value).removeprefix("torch.")]
        case _:
            raise UnwritableError(f"an argument is a {type(value).__name__}")


def _read(value: Any) -> Any:
    match value:
        case ["value", int() as number]:
            return _Value(number)
        case ["float", str() as text]:
            return float.fromhex(text)
        case ["complex", str() as real, str() as imaginary]:
            return complex(float.fromhex(real), float.fromhex(imaginary))
        case ["list", *items]:
            return [_read(item) for item in items]
        case ["tuple", *items]:
            return tuple(_read(item) for item in items)
        case ["dict", dict() as named]:
            return {name: _read(one) for name, one in named.items()}
        case ["device", str() as text]:
            return torch.device(text)
        case ["torch", str() as name]:
            return getattr(torch, name)
        case _:
            return value
