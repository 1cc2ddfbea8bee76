"""All that may compute products, convolutions and attention, by the form of what is computed: `REGISTRY`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from coilwork_ir.loops import Convolution
from coilwork_ir.loops.matrix_products import GroupedProduct, MatrixProduct
from coilwork_scheduler.contractions import convolutions
from coilwork_scheduler.contractions.aten_products import ATEN_PRODUCTS, GROUPED_PRODUCTS
from coilwork_scheduler.contractions.attention import ATTENTIONS, AttentionImplementation
from coilwork_scheduler.contractions.implementations import IMPLEMENTATIONS, Implementation, Surroundings
from coilwork_scheduler.contractions.templates import MakeTemplate

MakeImplementation: TypeAlias = Callable[[Surroundings], Implementation[MatrixProduct]]
"""Makes an implementation that knows what is around the products that it is asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """All implementations, by the form of what they compute.

    Among those that are worth it an earlier one is taken before later ones.

    Attributes:
        products, grouped, convolutions, attentions: calls and loops, which take a node's place.
        templates: kernels with a core, for convolutions, attention and its gradient as they are.
    """

    products: tuple[MakeImplementation, ...] = ()
    grouped: tuple[Callable[[Surroundings], Implementation[GroupedProduct]], ...] = ()
    convolutions: tuple[Callable[[Surroundings], Implementation[Convolution]], ...] = ()
    attentions: tuple[Callable[[Surroundings], AttentionImplementation], ...] = ()
    templates: tuple[MakeTemplate, ...] = ()


REGISTRY: Final = Registry(
    products=(*IMPLEMENTATIONS, *ATEN_PRODUCTS),
    grouped=GROUPED_PRODUCTS,
    convolutions=convolutions.IMPLEMENTATIONS,
    attentions=ATTENTIONS,
)
