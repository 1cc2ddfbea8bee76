"""The ways to compute attention and its gradient: calls of ATen's, and loops, one row each in `ATTENTIONS`.

As with products (`implementations.py`), an implementation says why it cannot compute a node (`claims`), what
it costs (`quote`), and what nodes it is (`build`). Only a kernel's own gradient understands what the kernel
leaves for it, so a row claims the nodes of its own form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, Protocol, TypeAlias

from coilwork_ir.buffers import Argument, Buffer, ListValue, Ref, SymbolOutput
from coilwork_ir.loops import Attention, AttentionGradient, Extern, Node
from coilwork_ir.loops.attention import (
    ATTENTION,
    ATTENTION_GRADIENT,
    GradientOperands,
    LibraryAttention,
    match_library_attention,
)
from coilwork_ir.loops.nodes import StateForm
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.attention_cost import model_attention_us
from coilwork_scheduler.contractions.attention_decomposition import DecomposedAttention
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote

AttentionNode: TypeAlias = Attention | AttentionGradient
GradientLayout: TypeAlias = Literal["by tokens", "as the result", "features together"]
"""Tokens by heads by features; the result's strides; any order of the rest."""
_SIZES: Final = ("cum_seq_q", "cum_seq_k", "max_q", "max_k")
_DRAWS: Final = ("philox_seed", "philox_offset")


class AttentionImplementation(Protocol):
    """A way to compute attention and its gradient."""

    def claims(self, node: AttentionNode, target: Target) -> str | None:
        """Why it does not compute `node` on `target`; None if it does."""
        ...

    def quote(self, node: AttentionNode, target: Target) -> Quote:
        """Cost of `node`, which it claims, on `target`."""
        ...

    def build(self, node: AttentionNode, target: Target) -> tuple[Node, ...]:
        """Return the nodes that compute `node`; there may be contractions among them."""
        ...


def drop_unread_state(node: AttentionNode, read: Collection[str]) -> AttentionNode:
    """`node` in the plain form, if it is attention that leaves nothing for a gradient: nobody has any of its
    results but the first in `read`. Calls in inference leave a library's state that nobody asks for.
    """
    if isinstance(node, AttentionGradient) or node.weights.form == "plain" or node.weights.dropout:
        return node
    if any(isinstance(left, SymbolOutput) or (left and left.name in read) for left in node.outputs[1:]):
        return node
    weights = replace(node.weights, form="plain")
    return replace(node, weights=weights, logsumexp=None, logsumexp_at=None, state=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """A pair of ATen's operators, for attention and its gradient, and how they are told what they take.

    Attributes:
        form: the state that they pass on.
        forward, backward: their names.
        is_for_cpus: they run on CPUs, and nowhere else.
        bias: the argument that the bias is given as, "" if they take none.
        derives_bias: the gradient of the bias is among their results.
        takes_columns: values may have another number of columns than keys.
        state: the arguments of the gradient that the state is given as, in its order, "" for a place that is
            not given.
        free: arguments of attention, by position, that may lie otherwise than captured: keys and values, in
            any order of batch, heads and tokens. Where the result follows the query, that one stays.
        gradient_layout: how its gradient takes the gradient of the result, its first argument, without a
            copy; None if that stays as captured.
        result: the position of the result among the arguments of the gradient.
    """

    form: StateForm
    forward: str
    backward: str
    is_for_cpus: bool = False
    bias: str = ""
    derives_bias: bool = False
    takes_columns: bool = False
    state: tuple[str, ...] = ()
    free: tuple[int, ...] = (1, 2)
    gradient_layout: GradientLayout | None = None
    result: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AtenAttention:
    """Calls of one pair of ATen's operators."""

    context: ImplementationContext
    kernels: Kernels

    def claims(self, node: AttentionNode, target: Target) -> str | None:
        """They compute what is in the form of libraries, on their kind of device, from their own state."""
        kernels = self.kernels
        if node.weights.form != kernels.form:
            return f"{kernels.forward} leaves another state"
        if target.is_gpu == kernels.is_for_cpus:
            return f"{kernels.forward} does not run on {target.kind}"
        found = match_library_attention(node, self.context.facts.buffers)
        if found is None:
            return "no library weighs keys so"
        parts, _ = found
        if parts.bias is not None and not kernels.bias:
            return f"{kernels.forward} takes no bias"
        if parts.key.shape[3] is not parts.value.shape[3] and not kernels.takes_columns:
            return f"{kernels.forward} takes as many columns of values as of keys"
        if isinstance(node, AttentionGradient) and node.of_bias is not None and not kernels.derives_bias:
            return f"{kernels.backward} gives the bias no gradient"
        if parts.causal and parts.causal != self._find_level(parts):
            return f"{kernels.forward} counts keys from the other end"
        if parts.dropout and kernels.is_for_cpus:
            return f"{kernels.forward} drops no weights"
        return None

    def quote(self, node: AttentionNode, target: Target) -> Quote:
        """Return the time of its tiles, or of memory: scores stay on chip."""
        us = model_attention_us(node, self.context, target, target.machine.attention_calls, alone=True)
        return Quote(us=us, reason="scores stay on chip", numbers={"call_us": round(us, 3)})

    def build(self, node: AttentionNode, target: Target) -> tuple[Node, ...]:
        """Return the call."""
        parts, saved = self._read(node)
        if isinstance(node, Attention):
            return (self._call_forward(node, parts),)
        assert saved is not None
        return (self._call_backward(node, parts, saved),)

    def _read(self, node: AttentionNode) -> tuple[LibraryAttention, GradientOperands | None]:
        found = match_library_attention(node, self.context.facts.buffers)
        assert found is not None, "only what is claimed is built"
        return found

    def _find_level(self, parts: LibraryAttention) -> str:
        """Return which row and key a causal mask of the kernels has level."""
        uneven = parts.query.shape[2] is not parts.key.shape[2]
        return "last" if self.kernels.form == "flash" and uneven else "first"

    def _call_forward(self, node: Attention, parts: LibraryAttention) -> Extern:
        kernels, operands = self.kernels, tuple(Ref(b.name) for b in (parts.query, parts.key, parts.value))
        bias = None if parts.bias is None else Ref(parts.bias.name)
        is_causal, stores = bool(parts.causal), node.logsumexp_at is not None
        args: tuple[Argument, ...]
        keywords = self._scale_keyword(parts)
        match kernels.form:
            case "plain":
                args = (*operands, parts.dropout, is_causal)
                keywords = ((kernels.bias, bias), *keywords) if bias is not None else keywords
            case "flash":
                args = (*operands, parts.dropout, is_causal, False)
            case "efficient":
                args = (*operands, bias, stores, parts.dropout, is_causal)
            case "cudnn":
                args = (*operands, bias, stores, parts.dropout, is_causal, False)
        return Extern(
            target=f"aten.{kernels.forward}.default",
            args=args,
            kwargs=keywords,
            outputs=node.outputs,
            single=False,
            implements=ATTENTION,
            random=True,
            origins=node.origins,
        )

    def _call_backward(
        self, node: AttentionGradient, parts: LibraryAttention, saved: GradientOperands
    ) -> Extern:
        kernels = self.kernels
        query, key, value = (Ref(b.name) for b in (parts.query, parts.key, parts.value))
        given, output, logsumexp = (Ref(b.name) for b in (saved.gradient, saved.output, saved.logsumexp))
        bias = None if parts.bias is None else Ref(parts.bias.name)
        is_causal, state = bool(parts.causal), dict(zip(kernels.state, node.state, strict=True))
        first: tuple[Argument, ...] = (given, query, key, value)
        sizes, draws = (tuple(state.get(name) for name in names) for names in (_SIZES, _DRAWS))
        args: tuple[Argument, ...]
        outputs: tuple[Buffer | None, ...] = (node.of_query, node.of_key, node.of_value)
        keywords = self._scale_keyword(parts)
        match kernels.form:
            case "plain":
                args = (*first, output, logsumexp, parts.dropout, is_causal)
                keywords = ((kernels.bias, bias), *keywords) if bias is not None else keywords
            case "flash":
                args = (*first, output, logsumexp, *sizes, parts.dropout, is_causal, *draws)
            case "efficient":
                wanted = ListValue((True, True, True, node.of_bias is not None))
                args = (*first, bias, output, logsumexp, *draws, parts.dropout, wanted, is_causal)
                outputs = (*outputs, node.of_bias)
            case "cudnn":
                args = (*first, output, logsumexp, *draws, bias, *sizes, parts.dropout, is_causal)
        return Extern(
            target=f"aten.{kernels.backward}.default",
            args=args,
            kwargs=keywords,
            outputs=outputs,
            single=False,
            implements=ATTENTION_GRADIENT,
            random=kernels.form in ("efficient", "cudnn"),
            origins=node.origins,
        )

    def _scale_keyword(self, parts: LibraryAttention) -> tuple[tuple[str, Argument], ...]:
        """Return the scale, as torch passes it: always to flash attention, to others if it is not their
        default.
        """
        if parts.has_default_scale and self.kernels.form != "flash":
            return ()
        return (("scale", parts.scale),)


KERNELS: Final[tuple[Kernels, ...]] = (
    Kernels(
        form="plain",
        forward="_scaled_dot_product_flash_attention_for_cpu",
        backward="_scaled_dot_product_flash_attention_for_cpu_backward",
        is_for_cpus=True,
        bias="attn_mask",
    ),
    Kernels(
        form="flash",
        forward="_scaled_dot_product_flash_attention",
        backward="_scaled_dot_product_flash_attention_backward",
        state=(*_SIZES, *_DRAWS, ""),
        # `grad_out.contiguous()`, of tokens by heads by features
        gradient_layout="by tokens",
    ),
    Kernels(
        form="efficient",
        forward="_scaled_dot_product_efficient_attention",
        backward="_scaled_dot_product_efficient_attention_backward",
        bias="attn_bias",
        takes_columns=True,
        derives_bias=True,
        state=_DRAWS,
        free=(0, 1, 2),
        gradient_layout="features together",
        result=5,
    ),
    Kernels(
        form="cudnn",
        forward="_scaled_dot_product_cudnn_attention",
        backward="_scaled_dot_product_cudnn_attention_backward",
        bias="attn_bias",
        takes_columns=True,
        state=(*_SIZES, *_DRAWS, ""),
        # a copy with the result's strides
        gradient_layout="as the result",
    ),
)


def find_kernels(call: Extern) -> Kernels | None:
    """Return the pair of operators that `call` is of, if it implements attention or its gradient."""
    if call.implements not in (ATTENTION, ATTENTION_GRADIENT):
        return None
    name = call.target.partition(".")[2].partition(".")[0]
    return next((kernels for kernels in KERNELS if name in (kernels.forward, kernels.backward)), None)


def _make_row(kernels: Kernels, context: ImplementationContext) -> AttentionImplementation:
    return AtenAttention(context=context, kernels=kernels)


ATTENTIONS: Final[tuple[Callable[[ImplementationContext], AttentionImplementation], ...]] = (
    *(partial(_make_row, kernels) for kernels in KERNELS),
    DecomposedAttention,
)
"""The registry. Among implementations that quote the same an earlier one is taken before later ones."""
