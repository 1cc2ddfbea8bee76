"""Products in 16 bits as kernels that also compute what follows, where that beats a call and more kernels.

The quote is the time of the kernel less what one kernel for all saves: the result is not read again, and one
store and one launch are left out. It is weighed beside a library at its best, so that models that err leave
a product to the library. A product that nothing follows is the library's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import ClassVar, Final

from coilwork_ir.device_traits import CUBLAS
from coilwork_ir.dtypes import DType
from coilwork_ir.loops.matrix_products import MatrixProduct
from coilwork_ir.mapping.product_blocks import COPY_ENGINE
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.implementations import Quote, SumsOfProducts
from coilwork_scheduler.contractions.product_epilogue import EpilogueFinder

_HALVES: Final = frozenset({DType.F16, DType.BF16})


@dataclass(frozen=True)
class FusedProducts(SumsOfProducts):
    """Sums of products whose kernel also computes what becomes of them."""

    loss: ClassVar[str] = "a library's product and kernels for what follows take no longer"

    @cached_property
    def _epilogues(self) -> EpilogueFinder:
        return EpilogueFinder(context=self.context)

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        """Return the time of the product's kernel, or its part of that of two, less what it saves."""
        unknown = self._explain_unknown(product, target)
        if unknown:
            return Quote(us=inf, reason=unknown)
        epilogue = self._epilogues.find(product)
        if epilogue.has_other_owner:
            return Quote(us=inf, reason="another product's kernel computes what follows")
        if epilogue.saved_us <= 0:
            return Quote(us=inf, reason="nothing follows that a kernel of its own would compute")
        if any(self._explain_unknown(one, target) for one in epilogue.products):
            return Quote(us=inf, reason="the product beside it is none of ours")
        sums = len(epilogue.products)
        kernel_us = self.context.product_us(product, target, sums=sums, finish=epilogue.finish)
        call_us = sums * self.context.call_us(product, target)
        # what two kernels in one save is divided between them, so that both decide alike
        us = max(
            0.0, self.context.call_us(product, target) - (call_us - kernel_us + epilogue.saved_us) / sums
        )
        numbers = {
            "kernel_us": round(kernel_us, 3),
            "saved_us": round(epilogue.saved_us, 3),
            "sums": float(sums),
        }
        return Quote(us=us, reason="what follows needs no kernel of its own", numbers=numbers)

    def least_gain_us(self, product: MatrixProduct, rival: Quote) -> float:
        """Return the least gain that counts: a share of the rival's time."""
        figures = self.context.targets.of(product.output.device).machine.product_kernels
        return max(figures.least_gain_us, figures.least_gain_share * rival.us)

    def _explain_unknown(self, product: MatrixProduct, target: Target) -> str:
        """Return why no kernel is known to be fast; empty if one is."""
        context = self.context
        if not target.has(CUBLAS) or not target.has(COPY_ENGINE):
            return "no kernel is known to be faster"
        if self.claims(product, target) is not None or product.output.dtype not in _HALVES:
            return "it multiplies no 16 bits"
        if context.options.numerics != "fast" or context.options.batch_invariant:
            return "results are rounded as a library's are"
        if not context.has_whole_rows(product, target):
            return "rows of the factors are no whole vectors"
        if context.find_widened(product):
            return "a factor is computed from fewer bytes"
        return ""

    def _pieces(self, product: MatrixProduct, target: Target) -> int:
        return 1
