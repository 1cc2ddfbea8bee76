"""Values that eager looks at on a CPU and torch's tracing does not: classes of `one_hot`, the `q` of
quantiles, assertions without words.

Of fake tensors there are none to look at, and what the calls are traced to computes with all. So a check
goes in front. On GPUs eager asserts on the device that classes are below their number: there they are looked
up among all classes, which the kernel that reads them checks. Quantiles eager does not look at there.
Torch's tracing keeps assertions that have words only: others get those of eager's kernel.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from coilwork_frontend.torch_compat.operators import ASSERT_ASYNC, native_function
from coilwork_frontend.torch_compat.tensors import is_functorch_tensor
from coilwork_ir.device_traits import ATEN_CPU, ATEN_CUDA, has_trait

aten: Final = torch.ops.aten
_ONE_HOT: Final = frozenset(
    {functional.one_hot, native_function("one_hot"), aten.one_hot, aten.one_hot.default}
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
    """Put the checks into Dynamo's graph `gm`, in place."""
    changed = False
    for node in list(gm.graph.nodes):
        with gm.graph.inserting_before(node):
            if node.op == "call_function" and node.target in _ONE_HOT:
                changed |= _check_classes(node)
            elif node.op in ("call_function", "call_method") and node.target in _QUANTILES:
                changed |= _check_quantiles(node)
            elif node.op == "call_function" and node.target in _ASSERTIONS and len(node.args) == 1:
                node.target, node.args = aten._assert_async.msg, (*node.args, _NOT_ASSERTED)
                changed = True
    if changed:
        gm.recompile()


def _check_classes(node: fx.Node) -> bool:
    """Have the classes lie below their number, if that is said."""
    classes, count = _argument(node, 0, "input", "self", "tensor"), _argument(node, 1, "num_classes")
    if count in (None, -1):
        return False
    value = _value_on_cpu(classes)
    if value is None:
        return _look_classes_up(node, classes, count)
    if value.dtype is not torch.int64:
        return False
    _require(node.graph, operator.ge, classes, 0, "Class values must be non-negative.")
    _require(node.graph, operator.lt, classes, count, "Class values must be smaller than num_classes.")
    return True


def _look_classes_up(node: fx.Node, classes: Any, count: Any) -> bool:
    """Have classes on a GPU be what stands at their place among all classes."""
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
    every = graph.call_function(torch.arange, (count,), {"device": value.device})
    places = graph.call_method("reshape", (classes, -1))
    found = graph.call_function(torch.index_select, (every, 0, places))
    node.replace_input_with(classes, graph.call_method("view_as", (found, classes)))
    return True


def _check_quantiles(node: fx.Node) -> bool:
    asked = _argument(node, 1, "q")
    value = _value_on_cpu(asked)
    if value is None or not value.is_floating_point():
        return False
    for compare, bound in ((operator.ge, 0), (operator.le, 1)):
        _require(node.graph, compare, asked, bound, "quantile() q values must be in the range [0, 1]")
    return True


def _argument(node: fx.Node, position: int, *names: str) -> Any:
    given = [*node.args[position : position + 1], *(node.kwargs.get(name) for name in names)]
    return next((one for one in given if one is not None), None)


def _value_on_cpu(node: object) -> Tensor | None:
    """The value that Dynamo traced, if it is a tensor whose values eager would look at."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if (
        not isinstance(value, Tensor)
        or not has_trait(value.device.type, ATEN_CPU)
        or is_functorch_tensor(value)
    ):
        return None
    return value


def _require(graph: fx.Graph, compare: Any, value: Any, bound: Any, message: str) -> None:
    """Have `compare(value, bound)` hold everywhere, where NaN compares with nothing."""
    holds = graph.call_function(compare, (value, bound))
    everywhere = graph.call_method("all", (holds,))
    graph.call_function(aten._assert_async.msg, (everywhere, message))
