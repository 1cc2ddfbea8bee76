"""Bad calls as tracing and lowering see them: nothing is built or run, so thousands take minutes.

A call is refused if tracing raises; it is judged when the program runs if the graph calls ATen or holds
checks. What is left has no way to be refused: `accepted`, or `error` where lowering itself fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from coilwork_ir.loops import AssertSize, Extern
from coilwork_lowering import LoweringError, decompositions, lower
from integration_tests.operators.database import Sample


def screened(function: Callable[..., Any], sample: Sample) -> tuple[str, str]:
    """Status and detail: "refused", "left", "checked", "accepted" or "error"."""
    arguments, keywords = sample.fresh()
    leaves, structure = pytree.tree_flatten((arguments, keywords))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def call(*given: Tensor) -> list[Any]:
        rest = iter(given)
        filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        positional, named = pytree.tree_unflatten(filled, structure)
        return [one for one in pytree.tree_leaves(function(*positional, **named)) if isinstance(one, Tensor)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:  # as Dynamo does
                call(*[mode.from_tensor(one) for one in tensors])
            traced = make_fx(
                call,
                tracing_mode="fake",
                decomposition_table=decompositions(),
                _allow_non_fake_inputs=True,
            )(*tensors)
        except Exception:  # noqa: BLE001  any error is a refusal
            return "refused", ""
        return _lowered(traced)


def _lowered(traced: fx.GraphModule) -> tuple[str, str]:
    try:
        nodes = lower(traced, name="graph").graph.nodes
    except LoweringError as error:
        # operators that change a tensor are left in by this way of tracing
        in_place = any(
            getattr(node.target, "_schema", None) and node.target._schema.is_mutable
            for node in traced.graph.nodes
        )
        return ("left" if in_place else "error"), str(error)[:300]
    except Exception as error:  # noqa: BLE001  any failure is a finding
        return "error", f"{type(error).__name__}: {str(error)[:300]}"
    if any(isinstance(node, Extern) for node in nodes):
        return "left", ""
    if any(isinstance(node, AssertSize) or node.checks for node in nodes if hasattr(node, "checks")):
        return "checked", ""
    calls = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    return "accepted", " ".join(calls)[:200]
