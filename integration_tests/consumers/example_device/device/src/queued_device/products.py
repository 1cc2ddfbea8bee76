"""The library of the device, as the scheduler knows it: what it multiplies, what that costs, and the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coilwork_ir.buffers import Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.matrix_products import PRODUCT, MatrixProduct
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote
from coilwork_scheduler.contractions.registry import Registry


@dataclass(frozen=True, slots=True)
class Multiply:
    """Implements `coilwork_scheduler.contractions.implementations.Implementation` for products of two
    matrices.
    """

    around: ImplementationContext
    kind: ClassVar[Literal["library", "kernel"]] = "library"
    loss: ClassVar[str] = ""

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        """It multiplies two matrices of f32, and adds nothing."""
        types = {b.dtype for b in (product.left, product.right, product.output)}
        if not product.is_plain or product.added is not None or product.is_weighted:
            return "it multiplies, and nothing else"
        return None if types == {DType.F32} and len(product.output.shape) == 2 else "it knows matrices of f32"

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        """Less than ATen's call, which waits for the stream first: half of the time that memory takes."""
        read = sum(self.around.size(b) for b in (product.left, product.right))
        us = self.around.move_us(read, self.around.size(product.output)) / 2
        return Quote(us=us, numbers={"queued_us": round(us, 3)})

    def least_gain_us(self, product: MatrixProduct, rival: Quote) -> float:
        """0: libraries are compared by what they quote."""
        return 0.0

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        """The call, which writes into given memory."""
        call = Extern(
            target="queued.multiply.default",
            args=(Ref(product.left.name), Ref(product.right.name)),
            outputs=(product.output,),
            out_overload="queued.multiply.out",
            out_names=("out",),
            family="custom",
            implements=PRODUCT,
            fresh=True,
            origins=product.node.origins,
        )
        return (call,)


LIBRARY = Registry(products=(Multiply,))
