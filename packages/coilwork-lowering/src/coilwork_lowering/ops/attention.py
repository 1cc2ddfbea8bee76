"""Fused attention becomes a node: what comes behind lowering asks for no operator's name.

Which kernel an attention is for, torch has decided by the operator that it captured: kernels lay out
differently what they leave for the gradient, so the node says which of these forms it has. What no node says
stays a call like any other operator's: a mask of another shape, kernels that are asked for their weights, a
gradient of some operands only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from coilwork_ir.buffers import Argument, Buffer, ListValue, Ref, SymbolOutput
from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.attention import (
    Causal,
    GradientOperands,
    LibraryAttention,
    compute_default_scale,
    make_attention,
    make_attention_gradient,
)
from coilwork_ir.loops.nodes import STATE_LAYOUTS, StateForm
from coilwork_lowering.building.buffers import Buffers
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.extern.calls import call_extern
from coilwork_lowering.rules import Call, Rule
from coilwork_lowering.torch_compat.operators import Overload, get_schema


class _Inexpressible(Exception):
    """No node says this call."""


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of a call by the names of its schema, and the buffers that they name."""

    arguments: Mapping[str, Argument]
    buffers: Buffers

    def buffer(self, name: str) -> Buffer:
        """Return the tensor `name`."""
        result = self.optional_buffer(name)
        if result is None:
            raise _Inexpressible(f"{name} is no tensor")
        return result

    def optional_buffer(self, name: str) -> Buffer | None:
        """Return the tensor `name`, or None if that is given or nothing is."""
        result = self.arguments.get(name)
        if result is None:
            return None
        if not isinstance(result, Ref):
            raise _Inexpressible(f"{name} is no tensor")
        return self.buffers[result.name]

    def flag(self, name: str) -> bool:
        """Return the truth value `name`, False if it is not given."""
        result = self.arguments.get(name, False)
        if not isinstance(result, bool):
            raise _Inexpressible(f"{name} is not known")
        return result

    def read_parts(self, form: StateForm, bias: str) -> LibraryAttention:
        """Return the operands, of which `bias` is the argument's name, if the kernels take one."""
        query = self.buffer("query")
        scale = self.arguments.get("scale")
        scale = compute_default_scale(query) if scale is None else scale
        dropout = self.arguments["dropout_p"]
        if not isinstance(scale, float | int) or not isinstance(dropout, float | int):
            raise _Inexpressible("a scale or a share of dropped weights is not known")
        key = self.buffer("key")
        level: Causal = "first"
        if form == "flash" and query.shape[2:3] != key.shape[2:3]:
            level = "last"
        parts = LibraryAttention(
            query=query,
            key=key,
            value=self.buffer("value"),
            bias=self.optional_buffer(bias) if bias else None,
            scale=float(scale),
            causal=level if self.flag("is_causal") else "",
            dropout=float(dropout),
            form=form,
        )
        if has_trait(query.device, ATEN_CPU) != (form == "plain"):
            raise _Inexpressible("a kernel for another device")
        reason = parts.why_malformed()
        if reason is not None:
            raise _Inexpressible(reason)
        return parts


_Recast: TypeAlias = Callable[[_Arguments, Extern], Node]


def _make_rule(recast: _Recast) -> Callable[[Builder, Call], Value]:
    """Return the rule that makes the node of `recast`, or the call where no node says it."""

    def lower(builder: Builder, call: Call) -> Value:
        target = call.node.target
        assert isinstance(target, Overload)

        def make_node(extern: Extern) -> Node:
            given = _Arguments(_bind_arguments(target, extern), builder.buffers)
            try:
                return recast(given, extern)
            except _Inexpressible:
                return extern

        return call_extern(builder, call, target, recast=make_node)

    return lower


def _bind_arguments(target: Overload, extern: Extern) -> Mapping[str, Argument]:
    formals = [formal.name for formal in get_schema(target).arguments if not formal.kwarg_only]
    return {**dict(zip(formals, extern.args, strict=True)), **dict(extern.kwargs)}


def _recast_attention(form: StateForm, bias: str = "", stores: str = "") -> _Recast:
    """Makes attention whose state has `form`. `stores` is the flag that says if the logsumexp is stored."""

    def recast(given: _Arguments, extern: Extern) -> Node:
        parts = given.read_parts(form, bias)
        output, logsumexp, *state = extern.outputs
        if given.flag("return_debug_mask") or not isinstance(output, Buffer):
            raise _Inexpressible("weights are asked for")
        if not isinstance(logsumexp, Buffer | None) or output.dtype is not parts.query.dtype:
            raise _Inexpressible("results of other types")
        _require_state(parts, state, extern)
        if output.shape != (*parts.query.shape[:3], parts.value.shape[3]):
            raise _Inexpressible("a result of another shape")
        stored = given.flag(stores) if stores else True
        if stored and (logsumexp is None or logsumexp.dtype is not output.dtype.compute):
            raise _Inexpressible("a logsumexp of another type")
        return make_attention(
            parts, output, logsumexp, stores_logsumexp=stored, state=tuple(state), origins=extern.origins
        )

    return recast


def _recast_gradient(form: StateForm, state: tuple[str, ...] = (), bias: str = "") -> _Recast:
    """Makes the gradient of attention whose state has `form`, and is given in the arguments `state`."""

    def recast(given: _Arguments, extern: Extern) -> Node:
        parts = given.read_parts(form, bias)
        of_query, of_key, of_value, *of_bias = extern.outputs
        grads = [of_query, of_key, of_value, *of_bias]
        wanted = given.arguments.get("grad_input_mask")
        if wanted is not None and wanted != ListValue((True, True, True, isinstance(grads[3], Buffer))):
            raise _Inexpressible("gradients of some operands")
        operands = (parts.query, parts.key, parts.value, parts.bias)
        for own, operand in zip(grads, operands, strict=False):
            if own is None and operand is parts.bias:
                continue
            if not isinstance(own, Buffer) or operand is None:
                raise _Inexpressible("a gradient of nothing")
            if own.shape != operand.shape or own.dtype is not operand.dtype:
                raise _Inexpressible("a gradient of another shape")
        first, second, third, *fourth = (own for own in grads if isinstance(own, Buffer))
        values = tuple(given.arguments.get(name) if name else None for name in state)
        if len(values) != STATE_LAYOUTS[form].count:
            raise _Inexpressible("a state of another form")
        saved = GradientOperands(
            gradient=given.buffer("grad_out_" if "grad_out_" in given.arguments else "grad_out"),
            output=given.buffer("out"),
            logsumexp=given.buffer("logsumexp"),
        )
        shape = (*parts.query.shape[:3], parts.value.shape[3])
        if saved.gradient.shape != shape or saved.output.shape != shape or len(saved.logsumexp.shape) < 3:
            raise _Inexpressible("operands of another shape")
        return make_attention_gradient(
            parts,
            saved,
            (first, second, third),
            fourth[0] if fourth else None,
            state=values,
            origins=extern.origins,
        )

    return recast


def _require_state(
    parts: LibraryAttention, state: list[Buffer | SymbolOutput | None], extern: Extern
) -> None:
    """The state is one that a node of this form has, and nothing else has a part in the call."""
    places = STATE_LAYOUTS[parts.form]
    sizes = {number for number, entry in enumerate(state) if isinstance(entry, SymbolOutput)}
    if len(state) != places.count or not sizes <= {places.rows, places.keys}:
        raise _Inexpressible("a state of another form")
    if extern.binds or extern.aliases or extern.mutates or extern.out_overload:
        raise _Inexpressible("results share memory, or say sizes that nothing else does")
    if parts.dropout and (places.seed is None or state[places.seed] is None):
        raise _Inexpressible("weights are dropped without a seed")


_FLASH_STATE: Final = ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset", "")

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        ("aten._scaled_dot_product_flash_attention_for_cpu.default",),
        _make_rule(_recast_attention("plain", bias="attn_mask")),
    ),
    Rule(("aten._scaled_dot_product_flash_attention.default",), _make_rule(_recast_attention("flash"))),
    Rule(
        ("aten._scaled_dot_product_efficient_attention.default",),
        _make_rule(_recast_attention("efficient", bias="attn_bias", stores="compute_log_sumexp")),
    ),
    Rule(
        ("aten._scaled_dot_product_cudnn_attention.default",),
        _make_rule(_recast_attention("cudnn", bias="attn_bias", stores="compute_log_sumexp")),
    ),
    Rule(
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward.default",),
        _make_rule(_recast_gradient("plain", bias="attn_mask")),
    ),
    Rule(
        ("aten._scaled_dot_product_flash_attention_backward.default",),
        _make_rule(_recast_gradient("flash", _FLASH_STATE)),
    ),
    Rule(
        ("aten._scaled_dot_product_efficient_attention_backward.default",),
        _make_rule(_recast_gradient("efficient", ("philox_seed", "philox_offset"), bias="attn_bias")),
    ),
    Rule(
        ("aten._scaled_dot_product_cudnn_attention_backward.default",),
        _make_rule(_recast_gradient("cudnn", _FLASH_STATE, bias="attn_bias")),
    ),
)
