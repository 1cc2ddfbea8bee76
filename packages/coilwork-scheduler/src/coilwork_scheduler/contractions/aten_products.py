"""Calls of ATen's other products: by vectors, of scaled 8-bit floats, with an activation, of groups.

Each is the only known implementation of its form, so no kernel competes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from coilwork_ir.buffers import Argument, Buffer, Ref
from coilwork_ir.device_traits import ATEN_CPU, CUBLAS
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, as_int
from coilwork_ir.loc import Origin
from coilwork_ir.loops import Extern, Mutation, Node, View
from coilwork_ir.loops.matrix_products import (
    ACTIVATED_PRODUCT,
    GROUPED_PRODUCT,
    GroupedProduct,
    MatrixProduct,
)
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.implementations import Implementation, ImplementationContext, Quote

_FLOATS_OF_8_BITS: Final = frozenset({DType.F8E4M3, DType.F8E5M2, DType.F8E4M3FNUZ, DType.F8E5M2FNUZ})


@dataclass(frozen=True, slots=True)
class _AtenProduct:
    """The cost of a call, which all of these calls estimate alike."""

    context: ImplementationContext
    kind: ClassVar[Literal["library", "kernel"]] = "library"
    loss: ClassVar[str] = ""

    def quote(self, product: MatrixProduct | GroupedProduct, target: Target) -> Quote:
        """Return the time to read the operands and to write the result."""
        read = sum(self.context.size(buffer) for buffer in product.operands)
        us = self.context.move_us(read, self.context.size(product.output))
        return Quote(us=us, numbers={"call_us": round(us, 3)})

    def least_gain_us(self, product: MatrixProduct | GroupedProduct, rival: Quote) -> float:
        """0: it has no rival."""
        return 0.0


@dataclass(frozen=True, slots=True)
class AtenVectorCall(_AtenProduct):
    """A call of ATen's `mv` or `addmv`."""

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        """It multiplies a matrix by a vector of its type."""
        if not product.is_of_vector or product.activation or product.scales is not None:
            return "it multiplies by vectors"
        return _why_mixed(product)

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        """Return the call; `mv` makes its own result."""
        if product.added is None and product.alpha == 1:
            return (_call("mv", product, (product.left, product.right), writes=False),)
        added = product.added
        assert added is not None
        operands = (added, product.left, product.right)
        return (_call("addmv", product, operands, kwargs=_weights(product)),)


@dataclass(frozen=True, slots=True)
class AtenActivationCall(_AtenProduct):
    """A call of ATen's `_addmm_activation`, on NVIDIA GPUs an epilogue of cuBLASLt."""

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        """It multiplies two matrices of one type; its GELU is the exact one on CPUs, and its tanh form
        elsewhere.
        """
        gelu = "gelu" if target.has(ATEN_CPU) else "gelu_tanh"
        if product.activation not in ("relu", gelu) or len(product.output.shape) != 2 or product.scales:
            return "it does ReLU or GELU to the sums of two matrices"
        return _why_mixed(product)

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        """Return the call. Of what is added 0 times nothing is read: any row does."""
        is_gelu = product.activation != "relu"
        gelu: tuple[tuple[str, Argument], ...] = (("use_gelu", True),) if is_gelu else ()
        if product.added is not None:
            operands = (product.added, product.left, product.right)
            return (_call_with_activation(product, operands, (*_weights(product), *gelu)),)
        right = product.right
        row = replace(right, name=self.context.name("row"), shape=right.shape[1:], strides=right.strides[1:])
        view = View(output=row, source=right.name, offset=as_expr(0), origins=product.node.origins)
        weights = _weights(replace(product, beta=0))
        operands = (row, product.left, right)
        return view, _call_with_activation(product, operands, (*weights, *gelu))


@dataclass(frozen=True, slots=True)
class AtenScaledCall(_AtenProduct):
    """A call of ATen's `_scaled_mm`, of floats of 8 bits."""

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        """It multiplies two matrices of floats of 8 bits, and scales the sums."""
        factors = {product.left.dtype, product.right.dtype}
        if product.scales is None or not factors <= _FLOATS_OF_8_BITS or product.is_of_vector:
            return "it multiplies scaled floats of 8 bits"
        if product.activation or product.is_weighted or len(product.output.shape) != 2:
            return "it scales sums, and adds to them"
        return None

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        """Return the call, with every argument in its place."""
        assert product.scales is not None
        bias: Argument = None if product.added is None else Ref(product.added.name)
        further: tuple[Argument, ...] = (bias, None, product.output.dtype, product.node.approximate)
        operands = (product.left, product.right, *product.scales)
        return (_call("_scaled_mm", product, operands, further=further),)


@dataclass(frozen=True, slots=True)
class AtenWideCall(_AtenProduct):
    """A call of ATen's `mm` that leaves sums of 16-bit products in f32, as cuBLAS adds them."""

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        """It multiplies two matrices of 16-bit floats into f32, on NVIDIA GPUs."""
        factors = {product.left.dtype, product.right.dtype}
        is_wide = product.output.dtype is DType.F32 and factors in ({DType.F16}, {DType.BF16})
        if not is_wide or not target.has(CUBLAS):
            return "it multiplies 16-bit floats into f32, where cuBLAS does"
        if not product.is_plain or product.added is not None or product.is_weighted:
            return "it adds products, and nothing else"
        return None if len(product.output.shape) == 2 else "it multiplies two matrices"

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        """Return the call, which writes into given memory."""
        call = Extern(
            target="aten.mm.dtype",
            args=(Ref(product.left.name), Ref(product.right.name), DType.F32),
            outputs=(product.output,),
            out_overload="aten.mm.dtype_out",
            out_names=("out",),
            fresh=True,
            origins=product.node.origins,
        )
        return (call,)


@dataclass(frozen=True, slots=True)
class AtenGroupedCall(_AtenProduct):
    """A call of ATen's `_grouped_mm` or `_scaled_grouped_mm`, which make their own result."""

    def claims(self, product: GroupedProduct, target: Target) -> str | None:
        """It multiplies floats of the result's type, or floats of 8 bits that are scaled."""
        factors = {product.left.dtype, product.right.dtype}
        if any(buffer.device != product.output.device for buffer in product.operands):
            return "operands are on several devices"
        if any(_has_odd_rows(buffer) for buffer in (product.left, product.right)):
            return "it takes rows or columns that begin at vectors"
        if product.scales is not None:
            return None if factors <= _FLOATS_OF_8_BITS else "it scales products of floats of 8 bits"
        return None if factors == {product.output.dtype} else "operands are of several types"

    def build(self, product: GroupedProduct, target: Target) -> tuple[Node, ...]:
        """Return the call, with every argument in its place."""
        ends: Argument = None if product.ends is None else Ref(product.ends.name)
        factors: tuple[Argument, ...] = (Ref(product.left.name), Ref(product.right.name))
        args: tuple[Argument, ...] = (*factors, ends)
        name = "_grouped_mm"
        if product.scales is not None:
            scales = tuple(Ref(scale.name) for scale in product.scales)
            name = "_scaled_grouped_mm"
            args = (*factors, *scales, ends, None, None, product.output.dtype, product.node.approximate)
        call = Extern(
            target=f"aten.{name}.default",
            args=args,
            outputs=(product.output,),
            implements=GROUPED_PRODUCT,
            fresh=True,
            origins=product.node.origins,
        )
        return (call,)


GROUPED_PRODUCTS: Final[tuple[Callable[[ImplementationContext], Implementation[GroupedProduct]], ...]] = (
    AtenGroupedCall,
)
"""The registry's rows for products of groups of unequal size."""

ATEN_PRODUCTS: Final[tuple[Callable[[ImplementationContext], Implementation[MatrixProduct]], ...]] = (
    AtenVectorCall,
    AtenActivationCall,
    AtenScaledCall,
    AtenWideCall,
)
"""The registry's rows for calls that have no rival."""


def accumulate_product(
    sums: Buffer, before: Buffer, left: Buffer, right: Buffer, *, origins: tuple[Origin, ...]
) -> Extern:
    """Return a call that adds `left @ right` to `before`, whose memory is called `sums` afterwards.

    Factors are of the type of the sums, or on GPUs of 16 bits where sums are in f32.
    """
    names: tuple[Argument, ...] = (Ref(before.name), Ref(left.name), Ref(right.name))
    mutates = (Mutation(output=sums, source=before.name),)
    if left.dtype is sums.dtype:
        return Extern(
            target="aten.addmm_.default", args=names, outputs=(None,), mutates=mutates, origins=origins
        )
    return Extern(
        target="aten.addmm.dtype_out",
        args=(*names, sums.dtype),
        kwargs=(("out", Ref(before.name)),),
        outputs=(None,),
        mutates=mutates,
        origins=origins,
    )


# What ATen's grouped products refuse operands by: rows, or columns, begin at multiples of so many bytes.
_ALIGNED_BYTES: Final = 16


def _has_odd_rows(buffer: Buffer) -> bool:
    """Tell if matrices of `buffer` are known to lie neither by rows nor by columns that begin at vectors."""
    far, near = (as_int(stride) for stride in buffer.strides[-2:])
    if near != 1:
        far, near = near, far
    return near != 1 or (far is not None and far * buffer.dtype.itemsize % _ALIGNED_BYTES != 0)


def _call_with_activation(
    product: MatrixProduct, operands: tuple[Buffer, ...], kwargs: tuple[tuple[str, Argument], ...]
) -> Extern:
    """Return the call of `_addmm_activation`."""
    return _call("_addmm_activation", product, operands, kwargs=kwargs, implements=ACTIVATED_PRODUCT)


def _why_mixed(product: MatrixProduct) -> str | None:
    """Why ATen does not multiply what has several types, or lies on several devices; None if it has not."""
    alike = all(buffer.dtype is product.output.dtype for buffer in product.operands)
    near = all(buffer.device == product.output.device for buffer in product.operands)
    return None if alike and near else "operands are of several types, or on several devices"


def _weights(product: MatrixProduct) -> tuple[tuple[str, Argument], ...]:
    """Return the weights that are not 1, as arguments."""
    pairs = (("beta", product.beta), ("alpha", product.alpha))
    return tuple((name, weight) for name, weight in pairs if weight != 1)


def _call(
    name: str,
    product: MatrixProduct,
    operands: tuple[Buffer, ...],
    *,
    further: tuple[Argument, ...] = (),
    kwargs: tuple[tuple[str, Argument], ...] = (),
    writes: bool = True,
    implements: str = "",
) -> Extern:
    """Return a call of ATen's `name`, which writes into given memory if it `writes`."""
    return Extern(
        target=f"aten.{name}.default",
        args=(*(Ref(buffer.name) for buffer in operands), *further),
        kwargs=kwargs,
        outputs=(product.output,),
        out_overload=f"aten.{name}.out" if writes else "",
        out_names=("out",) if writes else (),
        implements=implements,
        fresh=True,
        origins=product.node.origins,
    )
