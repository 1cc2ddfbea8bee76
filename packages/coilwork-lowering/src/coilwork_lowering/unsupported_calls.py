"""Values and calls that no program can hold: neither tensors in strided memory nor numbers.

A graph is cut at them: Python makes these calls, between programs for the parts before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import fx

from coilwork_ir.dtypes import TORCH_NAMES
from coilwork_ir.loc import Origin
from coilwork_lowering.facts.fx_nodes import get_operator_name, get_origin, name_of_target
from coilwork_lowering.higher_order.stacked_loops import is_stacked_loop
from coilwork_lowering.torch_compat.operators import Overload
from coilwork_lowering.torch_compat.sizes import has_measured_results

# Higher-order operators that Python drives: they call objects and kernels of the user's, or keep what each
# round of a loop made.
_DRIVEN_BY_PYTHON: Final = frozenset(
    {
        "call_torchbind",
        "inductor_compiled_code",
        "print",
        "run_and_save_rng_state",
        "run_with_rng_state",
        "triton_kernel_wrapper_functional",
        "triton_kernel_wrapper_mutation",
        "while_loop_stack_output",
    }
)
_OPERANDS: Final = frozenset(
    {
        *(fx.Node, int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout),
        *(torch.memory_format, torch.SymInt, torch.SymFloat, torch.SymBool),
    }
)
"""Classes of the arguments that a program gives to a call."""
_NUMBERS: Final = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool, type(None))


def list_uncallable(gm: fx.GraphModule) -> dict[Origin, str]:
    """Return the nodes of `gm` that have no place in a program, each with the reason.

    An input or attribute among them is a value that no program takes; a call is to be made by Python. The
    output is among them if the graph returns an object that the captured code names.
    """
    found: dict[Origin, str] = {}
    foreign: dict[fx.Node, str] = {}
    for node in gm.graph.nodes:
        reason = _explain_value(gm, node)
        if reason:
            foreign[node] = reason
        elif node.op == "call_function":
            taken = next((foreign[one] for one in node.all_input_nodes if one in foreign), "")
            reason = f"it takes {taken}" if taken else _explain_call(gm, node)
        elif node.op == "output":
            returned = _find_foreign(node.args)
            reason = f"the graph returns {returned}" if returned else ""
        if reason:
            found[replace(get_origin(node), op=_name_of_call(node))] = reason
    return found


def _name_of_call(node: fx.Node) -> str:
    """Return the operator that `node` calls, also of one that is tied to others by tokens."""
    is_tied = node.op == "call_function" and get_operator_name(node) == "with_effects"
    return name_of_target(node.args[1]) if is_tied else get_operator_name(node)


def _explain_call(gm: fx.GraphModule, node: fx.Node) -> str:
    """Return why no program makes the call `node`; nothing if one may."""
    if node.op != "call_function":
        return ""
    if isinstance(node.target, Overload):
        taken = _find_foreign(node.args) or _find_foreign(node.kwargs.values())
        return f"it takes {taken}" if taken else ""
    name = _name_of_call(node)
    if is_stacked_loop(gm, node):
        return ""
    if name in _DRIVEN_BY_PYTHON:
        return f"{name} is driven by Python"
    for region in _regions(gm, node):
        inner = list_uncallable(region)
        if inner:
            return f"in a region of {name}, {next(iter(inner.values()))}"
        if has_measured_results(node):
            return f"the sizes of what {name} returns are known once a region has run"
    return ""


def _find_foreign(arguments: Iterable[Any]) -> str:
    """Describe the first of `arguments`, as the captured code writes them, that no program holds."""
    for one in arguments:
        if type(one) in _OPERANDS:
            continue
        reason = _find_foreign(one) if isinstance(one, list | tuple) else _describe_foreign(one)
        if reason:
            return reason
    return ""


def _regions(gm: fx.GraphModule, node: fx.Node) -> Iterator[fx.GraphModule]:
    """Yield the graphs that `node` calls."""
    for operand in node.all_input_nodes:
        held = _attribute(gm, operand)
        if isinstance(held, fx.GraphModule):
            yield held


def _attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    """Return the attribute of `gm` that `node` names; None if there is none."""
    if node.op != "get_attr":
        return None
    held: Any = gm
    for part in str(node.target).split("."):
        held = getattr(held, part)
    return held


def _explain_value(gm: fx.GraphModule, node: fx.Node) -> str:
    """Return why no program holds the value of `node`; empty if one can."""
    if node.op == "get_attr":
        held = _attribute(gm, node)
        return "" if isinstance(held, fx.GraphModule) else _describe_foreign(held)
    if node.op not in ("placeholder", "call_function"):
        return ""
    return _describe_foreign(node.meta.get("val"))


def _describe_foreign(value: object) -> str:
    if isinstance(value, list | tuple):
        return next(filter(None, map(_describe_foreign, value)), "")
    if isinstance(value, dict):
        # what a program calls returns lists
        return next(filter(None, map(_describe_foreign, value.values())), "")
    if isinstance(value, torch.Tensor):
        return _describe_foreign_tensor(value)
    return "" if isinstance(value, _NUMBERS) else f"an object of class {_class_name(value)}"


def _describe_foreign_tensor(value: torch.Tensor) -> str:
    if value.layout != torch.strided:
        return f"a tensor of layout {value.layout}"
    if str(value.dtype) not in TORCH_NAMES:
        return f"a tensor of type {value.dtype}"
    return "a tensor on meta, without memory" if value.device.type == "meta" else ""


def _class_name(value: Any) -> str:
    """Return the class of `value`, of a stand-in that torch traces with that of the object for which it
    stands.
    """
    return str(getattr(value, "script_class_name", type(value).__name__))
