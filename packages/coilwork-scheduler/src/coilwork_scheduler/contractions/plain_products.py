"""Products in 16 bits that nothing follows, as kernels of ours where a library's calls are slower.

- A row times a weight is a reduction like others, whose programs read the weight once, at the device's
  bandwidth. A library cuts the sums and adds the parts, which is half of the time where the weight is small.
- Many small products are one kernel whose blocks are products.
- What is added to a product is read once, where it is needed. A library copies it into the result beforehand.

What follows them, if anything does, is weighed in `fused_products.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from coilwork_ir.device_traits import CUBLAS
from coilwork_ir.index import as_int
from coilwork_ir.loops.matrix_products import MatrixProduct
from coilwork_ir.mapping.product_blocks import COPY_ENGINE, SHORT_SUMS, Finish
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.fused_products import FusedProducts
from coilwork_scheduler.contractions.implementations import Quote


@dataclass(frozen=True)
class PlainProducts(FusedProducts):
    """Sums of products whose kernel takes less than a call, whatever becomes of them."""

    loss: ClassVar[str] = "a library's call takes no longer"

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        """It multiplies floats of one type; those of 16 bits it weighs, and what is added to them, where
        kernels are known to be fast.
        """
        if target.has(CUBLAS) and target.has(COPY_ENGINE) and product.output.dtype.itemsize == 2:
            product = replace(product, alpha=1, beta=1)
        return super().claims(product, target)

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        """Return the time of the product's kernel, for the products that one is known to be fast for."""
        unknown = self._explain_unknown(product, target)
        if unknown:
            return Quote(us=inf, reason=unknown)
        figures, context = target.machine.product_kernels, self.context
        if self._is_of_row(product):
            read = sum(context.size(buffer) for buffer in product.operands)
            us = max(0.0, context.move_us(read, context.size(product.output)) - figures.row_gain_us)
            return Quote(us=us, reason="a row reads the weight once", numbers={"kernel_us": round(us, 3)})
        loads = context.count_summand_loads(product)
        is_short = context.sizes.value(product.sizes[2]) <= SHORT_SUMS
        # of one product of short sums the result is most of the traffic, which a library stores faster
        if (not loads and not is_short) or (is_short and not product.batch):
            return Quote(us=inf, reason="nothing that a library does slowly")
        us = context.product_us(product, target, finish=Finish(loads=loads))
        reason = "what is added is read where it is needed" if loads else "one kernel for many small products"
        return Quote(us=us, reason=reason, numbers={"kernel_us": round(us, 3)})

    def _is_of_row(self, product: MatrixProduct) -> bool:
        """Tell if one row, or one column, is multiplied by a weight whose sums go along memory."""
        rows, columns = (as_int(size) for size in product.sizes[:2])
        if product.batch or (rows != 1 and columns != 1):
            return False
        weight, along = (product.right, -2) if rows == 1 else (product.left, -1)
        return as_int(weight.strides[along]) == 1
