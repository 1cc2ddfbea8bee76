"""The registry of what may compute products, convolutions and attention, and templates.

Most implementations replace a node by other nodes. A template is a kernel that computes a convolution,
attention or its gradient as one node, and leaves it in the graph. Pointwise neighbours then become its
prologues and its epilogue, as far as it claims the node with them (`inlining/template_fusion.py`), and the
node becomes a kernel with a core (`coilwork_ir.kernels.nodes`), which a generator has the text for. A target
whose generator declares no cores of that kind is asked about none.

A back end with a method `implementations` returns a `Registry` for its own devices. Its rows stand before
those of this package, and are asked only about targets of the back end's kind. ATen's calls, which torch
sends on to any device, are the rows that every device has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from coilwork_ir.kernels import Candidate, Kernel
from coilwork_ir.kernels.nodes import CoreKind
from coilwork_ir.loops import Attention, AttentionGradient, Convolution, Node
from coilwork_ir.loops.matrix_products import GroupedProduct, MatrixProduct
from coilwork_ir.target import Capabilities, Target, Targets
from coilwork_scheduler.contractions.aten_products import ATEN_PRODUCTS, GROUPED_PRODUCTS
from coilwork_scheduler.contractions.attention import ATTENTIONS, AttentionImplementation, AttentionNode
from coilwork_scheduler.contractions.attention_template import AttentionInBlocks
from coilwork_scheduler.contractions.convolutions import AtenConvolution
from coilwork_scheduler.contractions.depthwise_convolutions import DepthwiseGradientSums, DepthwiseSums
from coilwork_scheduler.contractions.fused_products import FusedProducts
from coilwork_scheduler.contractions.implementations import (
    IMPLEMENTATIONS,
    Implementation,
    ImplementationContext,
    NamesBlocks,
    Quote,
)
from coilwork_scheduler.contractions.plain_products import PlainProducts

# ---- Templates ----


CoreNode: TypeAlias = Convolution | Attention | AttentionGradient
"""A node that a kernel can have as its core."""


class Template(Protocol):
    """A kernel that computes nodes as they are, prologues and epilogue included."""

    def claims(self, node: CoreNode, target: Target, /) -> str | None:
        """Why it does not compute `node` on `target`; None if it does.

        It sees bodies and the layouts of what they read and make. Asked again about the node with a neighbour
        in it, it says which prologues and epilogues it takes.
        """
        ...

    def quote(self, node: CoreNode, target: Target, /) -> Quote:
        """Cost of `node`, which it claims, on `target`. Pure, and as cheap as a cost model."""
        ...

    def least_gain_us(self, node: CoreNode, rival: Quote, /) -> float:
        """Return the gain over `rival` from which on it is chosen: models err."""
        ...


MakeTemplate: TypeAlias = Callable[[ImplementationContext], Template]
"""Makes a template that knows the graph around the nodes that it is asked about."""


def get_core_kind(node: CoreNode) -> CoreKind:
    """Return the kind of the core that `node` becomes."""
    match node:
        case Convolution():
            return "convolution"
        case Attention():
            return "attention"
        case AttentionGradient():
            return "attention-gradient"


def explain_no_core(node: CoreNode) -> str | None:
    """Why no kernel has `node` as its core, whatever the generator; None if one can."""
    if isinstance(node, Convolution):
        made = [output is not None for output in node.outputs]
        if made.count(True) != 1 or any(made[2:]):
            return "a kernel makes one gradient of a convolution"
        return None if node.accumulate.is_float else "a core multiplies floats"
    if node.weights.form != "plain" or node.weights.dropout:
        return "a core leaves nothing for its gradient but its results"
    if isinstance(node, Attention) and node.logsumexp is not None and node.logsumexp_at is None:
        return "its logsumexp is memory that nothing is stored in"
    return None


def find_template(
    node: CoreNode,
    target: Target,
    capabilities: Capabilities,
    templates: Sequence[Template],
    rival: Quote | None = None,
) -> tuple[Template, Quote] | None:
    """Return the template that computes `node` for least, and its quote; None if none is worth it beside
    `rival`.
    """
    if not templates or get_core_kind(node) not in capabilities.cores or explain_no_core(node):
        return None
    claimed = [template for template in templates if template.claims(node, target) is None]
    quotes = [(template.quote(node, target), template) for template in claimed]
    quote, best = min(quotes, key=lambda pair: pair[0].us, default=(None, None))
    if quote is None or best is None or quote.us == inf:
        return None
    if rival is not None and not (
        quote.us < rival.us and quote.us + best.least_gain_us(node, rival) <= rival.us
    ):
        return None
    return best, quote


# ---- The registry ----


MakeImplementation: TypeAlias = Callable[[ImplementationContext], Implementation[MatrixProduct]]
"""Makes an implementation that knows the graph around the products that it is asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """All implementations, by the form of what they compute.

    Among those that are worth it an earlier one is taken before later ones.

    Attributes:
        products, grouped, convolutions, attentions: calls and loops, which take a node's place.
        templates: kernels with a core, for convolutions, attention and its gradient as they are.
    """

    products: tuple[MakeImplementation, ...] = ()
    grouped: tuple[Callable[[ImplementationContext], Implementation[GroupedProduct]], ...] = ()
    convolutions: tuple[Callable[[ImplementationContext], Implementation[Convolution]], ...] = ()
    attentions: tuple[Callable[[ImplementationContext], AttentionImplementation], ...] = ()
    templates: tuple[MakeTemplate, ...] = ()


REGISTRY: Final = Registry(
    products=(*IMPLEMENTATIONS, FusedProducts, PlainProducts, *ATEN_PRODUCTS),
    grouped=GROUPED_PRODUCTS,
    convolutions=(AtenConvolution, DepthwiseSums, DepthwiseGradientSums),
    attentions=ATTENTIONS,
    templates=(AttentionInBlocks,),
)


# ---- Implementations of back ends ----


FormT = TypeVar("FormT")
RowT = TypeVar("RowT")
_ELSEWHERE = "it is another device's"


@runtime_checkable
class ImplementationProvider(Protocol):
    """The part of a back end that brings implementations. Back ends may leave it out."""

    def implementations(self, target: Target) -> Registry:
        """Return those for `target`, whose kind is one of its own. Each decides by `claims` what
        it computes.
        """
        ...


def collect_implementations(targets: Targets, find_backend: Callable[[Target], object]) -> Registry:
    """Collect the rows of the targets' back ends, which `find_backend` gives, before the scheduler's own."""
    found, asked = REGISTRY, set[str]()
    for target in (targets.main, *(target for _, target in targets.by_device)):
        backend = find_backend(target)
        if isinstance(backend, ImplementationProvider) and target.kind not in asked:
            found = add_implementations(found, backend.implementations(target), (target.kind,))
        asked.add(target.kind)
    return found


def add_implementations(registry: Registry, added: Registry, kinds: tuple[str, ...]) -> Registry:
    """Return `registry` with `added` rows before its own, for targets of `kinds`. Of two that cost the same
    the first is taken.
    """
    return replace(
        registry,
        products=(*_restrict(added.products, kinds, _restrict_implementation), *registry.products),
        grouped=(*_restrict(added.grouped, kinds, _restrict_implementation), *registry.grouped),
        convolutions=(
            *_restrict(added.convolutions, kinds, _restrict_implementation),
            *registry.convolutions,
        ),
        attentions=(*_restrict(added.attentions, kinds, _DeviceAttention), *registry.attentions),
        templates=(*_restrict(added.templates, kinds, _DeviceTemplate), *registry.templates),
    )


def _restrict(
    rows: tuple[Callable[[ImplementationContext], RowT], ...],
    kinds: tuple[str, ...],
    wrap: Callable[[RowT, tuple[str, ...]], RowT],
) -> tuple[Callable[[ImplementationContext], RowT], ...]:
    return tuple(partial(_make, row, kinds, wrap) for row in rows)


def _make(
    row: Callable[[ImplementationContext], RowT],
    kinds: tuple[str, ...],
    wrap: Callable[[RowT, tuple[str, ...]], RowT],
    context: ImplementationContext,
) -> RowT:
    return wrap(row(context), kinds)


@dataclass(frozen=True, slots=True)
class _DeviceImplementation(Generic[FormT]):
    """An implementation that claims nothing on devices of other kinds."""

    inner: Implementation[FormT]
    kinds: tuple[str, ...]

    @property
    def kind(self) -> Literal["library", "kernel"]:
        return self.inner.kind

    @property
    def loss(self) -> str:
        return self.inner.loss

    def claims(self, form: FormT, target: Target) -> str | None:
        return self.inner.claims(form, target) if target.kind in self.kinds else _ELSEWHERE

    def quote(self, form: FormT, target: Target) -> Quote:
        return self.inner.quote(form, target)

    def least_gain_us(self, form: FormT, rival: Quote) -> float:
        return self.inner.least_gain_us(form, rival)

    def build(self, form: FormT, target: Target) -> tuple[Node, ...]:
        return self.inner.build(form, target)


@dataclass(frozen=True, slots=True)
class _DeviceKernels(_DeviceImplementation[FormT]):
    """A `_DeviceImplementation` that names the blocks of its kernels."""

    def name_blocks(self, kernel: Kernel, target: Target) -> tuple[Candidate, ...]:
        assert isinstance(self.inner, NamesBlocks)
        return self.inner.name_blocks(kernel, target)


def _restrict_implementation(inner: Implementation[FormT], kinds: tuple[str, ...]) -> Implementation[FormT]:
    return (_DeviceKernels if isinstance(inner, NamesBlocks) else _DeviceImplementation)(inner, kinds)


@dataclass(frozen=True, slots=True)
class _DeviceAttention:
    """An attention implementation that claims nothing on devices of other kinds."""

    inner: AttentionImplementation
    kinds: tuple[str, ...]

    def claims(self, node: AttentionNode, target: Target) -> str | None:
        return self.inner.claims(node, target) if target.kind in self.kinds else _ELSEWHERE

    def quote(self, node: AttentionNode, target: Target) -> Quote:
        return self.inner.quote(node, target)

    def build(self, node: AttentionNode, target: Target) -> tuple[Node, ...]:
        return self.inner.build(node, target)


@dataclass(frozen=True, slots=True)
class _DeviceTemplate:
    """A template that claims nothing on devices of other kinds."""

    inner: Template
    kinds: tuple[str, ...]

    def claims(self, node: CoreNode, target: Target) -> str | None:
        return self.inner.claims(node, target) if target.kind in self.kinds else _ELSEWHERE

    def quote(self, node: CoreNode, target: Target) -> Quote:
        return self.inner.quote(node, target)

    def least_gain_us(self, node: CoreNode, rival: Quote) -> float:
        return self.inner.least_gain_us(node, rival)
