"""Put run-time checks into Dynamo's graphs, and order those that are there.

A user's `torch._check(n > 3, lambda: "too few")` fails with the user's words. Torch derives assertions from
it and puts these first, in terms of its own symbols; `put_user_checks_first` moves the user's check before
them.

Eager looks at some values on CPUs, and tracing does not: classes of `one_hot`, `q` of quantiles.
`check_values` inserts assertions. On GPUs eager asserts on the device that classes are below their number;
there, classes are looked up in a table, and the kernel checks the index. Tracing keeps an assertion only if
it has a message, so assertions without one get that of eager's kernel.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from coilwork_frontend.torch_compat.operators import ASSERT_ASYNC, get_native_function
from coilwork_frontend.torch_compat.tensors import is_functorch_tensor
from coilwork_ir.device_traits import ATEN_CPU, ATEN_CUDA, has_trait

# ---- The user's checks ----


TORCH_ASSERTION: Final = "Runtime assertion failed for expression "
_ASSERTION: Final = torch.ops.aten._assert_scalar.default
# arithmetic that raises nothing itself
_MOVED: Final[frozenset[Any]] = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.neg, operator.abs),
        *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
        *(operator.and_, operator.or_, operator.xor, operator.not_),
        *(torch.sym_max, torch.sym_min, torch.sym_ite, torch.sym_not, torch.sym_sum),
    }
)


def put_user_checks_first(gm: fx.GraphModule) -> None:
    """Move the user's checks in Dynamo's graph `gm`, in place, before the assertions that torch derived."""
    derived: list[fx.Node] = []
    changed = False
    for node in list(gm.graph.nodes):
        if node.target is not _ASSERTION:
            continue
        if str(node.args[1]).startswith(TORCH_ASSERTION):
            derived.append(node)
            continue
        changed |= _move_before(node, derived)
    if changed:
        gm.recompile()


def _match_size(node: fx.Node) -> tuple[fx.Node, object] | None:
    """Return the tensor and the dimension whose size `node` is: `x.size()[0]`, `x.size(0)`, `sym_size(x, 0)`.

    None if it is no size.
    """
    args = list(node.args)
    if node.target is operator.getitem and isinstance(args[0], fx.Node) and _reads_sizes(args[0]):
        args = [*args[0].args, *args[1:]]
    elif not _reads_sizes(node):
        return None
    return (args[0], args[1]) if len(args) == 2 and isinstance(args[0], fx.Node) else None


def _reads_sizes(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.sym_size.int or (node.op == "call_method" and node.target == "size")


def _move_before(check: fx.Node, derived: list[fx.Node]) -> bool:
    """Move `check` and its condition before the first assertion in `derived` about the same numbers."""
    parts, read = _trace_condition(check)
    for first in derived:
        if not read & _trace_condition(first)[1] or any(first < one for one, _ in read):
            continue
        for one in sorted(parts):
            if first < one:
                first.prepend(one)
        first.prepend(check)
        return True
    return False


def _trace_condition(check: fx.Node) -> tuple[set[fx.Node], set[tuple[fx.Node, object]]]:
    """Return the nodes that compute the condition of `check`, and the numbers that they read.

    A number is a node, with the dimension if it is a size.
    """
    parts: set[fx.Node] = set()
    read: set[tuple[fx.Node, object]] = set()
    pending = list(check.all_input_nodes)
    while pending:
        node = pending.pop()
        if node in parts:
            continue
        size = _match_size(node)
        if size is not None:
            parts.add(node)
            parts.update(one for one in node.all_input_nodes if one is not size[0])
            read.add(size)
        elif node.op == "call_function" and node.target in _MOVED:
            parts.add(node)
            pending += node.all_input_nodes
        else:
            read.add((node, None))
    return parts, read


# ---- Checks of values ----


aten: Final = torch.ops.aten
ONE_HOT: Final = frozenset(
    {functional.one_hot, get_native_function("one_hot"), aten.one_hot, aten.one_hot.default}
)
_QUANTILES: Final = frozenset(
    {
        *("quantile", "nanquantile", torch.quantile, torch.nanquantile),
        *(aten.quantile, aten.quantile.default, aten.nanquantile, aten.nanquantile.default),
    }
)
_ASSERTIONS: Final = frozenset({ASSERT_ASYNC, aten._assert_async, aten._assert_async.default})
_NOT_ASSERTED: Final = "Expected Tensor with single nonzero value, but got zero"


def check_values(gm: fx.GraphModule) -> None:
    """Insert checks of values that tracing does not see into Dynamo's graph `gm`, in place."""
    changed = False
    for node in list(gm.graph.nodes):
        with gm.graph.inserting_before(node):
            if node.op == "call_function" and node.target in ONE_HOT:
                changed |= _check_class_range(node)
            elif node.op in ("call_function", "call_method") and node.target in _QUANTILES:
                changed |= _check_quantiles(node)
            elif node.op == "call_function" and node.target in _ASSERTIONS and len(node.args) == 1:
                node.target, node.args = aten._assert_async.msg, (*node.args, _NOT_ASSERTED)
                changed = True
    if changed:
        gm.recompile()


def _check_class_range(node: fx.Node) -> bool:
    """Assert that classes lie in [0, num_classes), if the number is given; tell if the graph changed."""
    classes, count = _get_argument(node, 0, "input", "self", "tensor"), _get_argument(node, 1, "num_classes")
    if count in (None, -1):
        return False
    value = _value_on_cpu(classes)
    if value is None:
        return _look_classes_up(node, classes, count)
    if value.dtype is not torch.int64:
        return False
    _insert_assertion(node.graph, operator.ge, classes, 0, "Class values must be non-negative.")
    _insert_assertion(
        node.graph, operator.lt, classes, count, "Class values must be smaller than num_classes."
    )
    return True


def _look_classes_up(node: fx.Node, classes: Any, count: Any) -> bool:
    """Replace classes on a GPU by a lookup among all classes, so that the kernel checks the index."""
    value = classes.meta.get("example_value") if isinstance(classes, fx.Node) else None
    if (
        not isinstance(value, Tensor)
        or not has_trait(value.device.type, ATEN_CUDA)
        or value.dtype is not torch.int64
    ):
        return False
    if is_functorch_tensor(value):
        return False
    graph = node.graph
    table = graph.call_function(torch.arange, (count,), {"device": value.device})
    indices = graph.call_method("reshape", (classes, -1))
    looked_up = graph.call_function(torch.index_select, (table, 0, indices))
    node.replace_input_with(classes, graph.call_method("view_as", (looked_up, classes)))
    return True


def _check_quantiles(node: fx.Node) -> bool:
    q = _get_argument(node, 1, "q")
    value = _value_on_cpu(q)
    if value is None or not value.is_floating_point():
        return False
    for compare, bound in ((operator.ge, 0), (operator.le, 1)):
        _insert_assertion(node.graph, compare, q, bound, "quantile() q values must be in the range [0, 1]")
    return True


def _get_argument(node: fx.Node, position: int, *names: str) -> Any:
    values = [*node.args[position : position + 1], *(node.kwargs.get(name) for name in names)]
    return next((value for value in values if value is not None), None)


def _value_on_cpu(node: object) -> Tensor | None:
    """Return the fake tensor of `node`, if eager would look at its values: a plain tensor on a CPU."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if (
        not isinstance(value, Tensor)
        or not has_trait(value.device.type, ATEN_CPU)
        or is_functorch_tensor(value)
    ):
        return None
    return value


def _insert_assertion(graph: fx.Graph, compare: Any, value: Any, bound: Any, message: str) -> None:
    """Assert `compare(value, bound)` for all elements; NaN fails every comparison."""
    holds = graph.call_function(compare, (value, bound))
    everywhere = graph.call_method("all", (holds,))
    graph.call_function(aten._assert_async.msg, (everywhere, message))
