"""Matrix products that no fast kernel computes as captured, what that costs, and who reads strides.

Rows, or sizes in 16 bits, that are no whole vectors take slow kernels. `explain_stride_dependence` tells
whether a value may be laid out differently, and `restride_views` what its views then become.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch

from coilwork_ir.machine import FindModel, MachineModel, find_like_model
from coilwork_ir.machine.model import Products
from coilwork_ir.operators import ProductRoles, find_info
from coilwork_lowering.aten_layouts.formats import Size, estimate_bytes, get_size_hints
from coilwork_lowering.facts.alias_analysis import list_mutated_operands
from coilwork_lowering.facts.fx_nodes import (
    can_read_any_strides,
    get_packet_name,
    iterate_readers,
    iterate_views,
    view_base,
)
from coilwork_lowering.torch_compat.operators import Overload, get_schema

# products


_HALVES: Final = frozenset({torch.bfloat16, torch.float16})
_CARING: Final = frozenset({*_HALVES, torch.float32})
"""Types of elements whose kernels care for alignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A call that multiplies matrices of any strides into a result of any.

    Attributes:
        node: the call.
        places: positions of its two matrices among its arguments.
        added: position of what is added to the product; None if nothing is. It is copied into the result
            beforehand.
        tensors: what has a leading dimension in it: its two matrices and its result.
        machine: what was measured of its device.
    """

    node: torch.fx.Node
    places: tuple[int, int]
    added: int | None
    tensors: tuple[torch.fx.Node, ...]
    machine: MachineModel

    @property
    def figures(self) -> Products:
        """The device's measured figures of products."""
        return self.machine.products

    @property
    def flops(self) -> int:
        """Additions and multiplications, by hints; 0 where sizes depend on data."""
        left, result = (get_size_hints(self.tensors[k].meta["val"]) for k in (0, 2))
        return 0 if left is None or result is None else 2 * prod(result) * left[-1]

    @property
    def lost_us(self) -> float:
        """Time that kernels for unaligned rows take longer than aligned ones, as modelled."""
        figures = self.figures
        if self.tensors[2].meta["val"].dtype in _HALVES:
            return self.flops / figures.padded_rate * (figures.padded_slowdown - 1)
        return self.flops / figures.single_rate * (figures.single_slowdown - 1)

    @property
    def padding(self) -> tuple[int, int]:
        """Return how many numbers the inner size and the result's columns lack to whole vectors, in 16 bit
        floats.

        These sizes decide which kernels cuBLAS takes, whatever the strides: the columns, which are
        consecutive in the result, and the inner size where it is consecutive in an operand. The number of
        rows does not. 0 where a size does not decide, is symbolic, or makes the product one of vectors.
        """
        left, right, result = (t.meta["val"] for t in self.tensors)
        sizes = (left.shape[-1], result.shape[-1], result.shape[-2])
        if result.dtype not in _HALVES or any(_is_size(size, 1) for size in sizes):
            return (0, 0)
        decides = _is_size(left.stride()[-1], 1) or _is_size(right.stride()[-2], 1)
        vector = self.figures.halves_per_vector
        return (_count_lacking(sizes[0], vector) if decides else 0, _count_lacking(sizes[1], vector))

    @property
    def lost_by_sizes_us(self) -> float:
        """Time that kernels for the sizes as captured take longer than those for padded ones, as modelled."""
        flops, (inner, columns) = self.flops, self.padding
        if not flops or not (inner or columns):
            return 0.0
        slowest = min((size & -size for size, _ in self._odd))
        return model_unaligned_us(flops, slowest, self._moved_bytes, self.figures) - self.enlarged_us

    @property
    def enlarged_us(self) -> float:
        """Time of the product with padded sizes, as modelled."""
        flops = self.flops * prod(1 + more / size for size, more in self._odd)
        return model_aligned_us(flops, self._moved_bytes, self.figures)

    @property
    def odd_stores_us(self) -> float:
        """Time of a kernel of ours that stores rows as captured, with padded factors, as modelled."""
        return max(
            self.flops / self.figures.odd_stores_rate, self._moved_bytes / self.figures.copied_bytes_per_us
        )

    @property
    def _odd(self) -> list[tuple[int, int]]:
        """Sizes that are no whole vectors, and what they lack."""
        sizes = (self.tensors[0].meta["val"].shape[-1], self.tensors[2].meta["val"].shape[-1])
        return [(int(size), more) for size, more in zip(sizes, self.padding, strict=True) if more]

    @property
    def _moved_bytes(self) -> int:
        return sum(estimate_bytes(t.meta["val"]) for t in self.tensors)


def model_aligned_us(flops: float, moved_bytes: int, figures: Products) -> float:
    """Time of a large product whose sizes are whole vectors, as modelled."""
    return max(flops / figures.aligned_rate, moved_bytes / figures.copied_bytes_per_us)


def model_unaligned_us(flops: float, size: int, moved_bytes: int, figures: Products) -> float:
    """Time of a large product with such a `size`, as modelled."""
    return max(flops / figures.unaligned_rate(size), moved_bytes / figures.copied_bytes_per_us)


def _count_lacking(size: int | torch.SymInt, vector: int) -> int:
    return -size % vector if type(size) is int else 0


def is_product(node: torch.fx.Node) -> bool:
    """Tell if `node` is one of the calls that `Product` describes: they take and write matrices of any
    strides.
    """
    return _roles(node) is not None


def _roles(node: torch.fx.Node) -> ProductRoles | None:
    """Return the parts of the arguments of `node`, if it is such a call."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, Overload) or target._overloadname != "default":
        return None
    roles = find_info(get_packet_name(target)).product
    return roles if roles is not None and roles.is_plain else None


def find_products(
    gm: torch.fx.GraphModule, devices: Sequence[str], find_model: FindModel = find_like_model
) -> Iterator[Product]:
    """Products on `devices` of element types whose kernels care for alignment."""
    for node in gm.graph.nodes:
        product = match_product(node, devices, find_model)
        if product is not None:
            yield product


def match_product(
    node: torch.fx.Node, devices: Sequence[str], find_model: FindModel = find_like_model
) -> Product | None:
    """`node` as a product, if it is one on `devices` of an element type whose kernels care for alignment."""
    roles = _roles(node)
    if roles is None:
        return None
    assert isinstance(node.target, Overload)
    names = [argument.name for argument in get_schema(node.target).arguments]
    places, value = (names.index(roles.left), names.index(roles.right)), node.meta.get("val")
    if not isinstance(value, torch.Tensor) or len(node.args) <= places[1]:
        return None
    if value.device.type not in devices or value.dtype not in _CARING:
        return None
    tensors: list[torch.fx.Node] = []
    for tensor in (*(node.args[place] for place in places), node):
        if not isinstance(tensor, torch.fx.Node) or not isinstance(tensor.meta.get("val"), torch.Tensor):
            return None
        tensors.append(tensor)
    added = names.index(roles.added) if roles.added else None
    machine = find_model(str(value.device))
    return Product(node=node, places=places, added=added, tensors=tuple(tensors), machine=machine)


def is_unaligned(tensor: torch.Tensor, vector_bytes: int) -> bool:
    """Tell whether a product reads or writes `tensor` in place, but no aligned kernel can: rows start between
    vectors.

    False where that is not known, and for what a product copies first: matrices with no dimension of stride
    1.
    """
    (rows, columns), (far, near) = tensor.shape[-2:], tensor.stride()[-2:]
    if _is_size(near, 1):
        leading, other = far, rows
    elif _is_size(far, 1):
        leading, other = near, columns
    else:
        return False
    steps = [leading] if not _is_size(other, 1) else []
    steps += [s for n, s in zip(tensor.shape[:-2], tensor.stride()[:-2], strict=True) if not _is_size(n, 1)]
    places = [*steps, tensor.storage_offset()]
    return any(type(place) is int and place * tensor.element_size() % vector_bytes != 0 for place in places)


def _is_size(size: int | torch.SymInt, number: int) -> bool:
    return type(size) is int and size == number


# strides


def explain_stride_dependence(node: torch.fx.Node) -> str:
    """Return why `node` must keep its strides for those who read it, directly or through views; empty if it
    need not.
    """
    owner = view_base(node)
    for reader in iterate_readers(node):
        if reader.op == "output":
            return "returned to the caller"
        if any(view_base(written) is owner for written in list_mutated_operands(reader)):
            return "written to"
        if not (can_read_any_strides(reader) or is_product(reader)):
            return f"read by {reader.name}, which depends on strides"
    return ""


def restride_views(
    node: torch.fx.Node, value: torch.Tensor, mode: AbstractContextManager[object]
) -> Mapping[torch.fx.Node, torch.Tensor] | None:
    """Fake tensors of `node`, given as `value`, and of all its views; None if a view cannot be had without a
    copy.
    """
    values = {node: value}
    with mode:
        for view in iterate_views(node):
            arguments = torch.fx.map_arg(view.args, lambda n: values.get(n, n.meta.get("val")))
            named = torch.fx.map_arg(view.kwargs, lambda n: values.get(n, n.meta.get("val")))
            call: Any = view.target
            try:
                values[view] = call(*arguments, **named)
            except (RuntimeError, ValueError):
                # this view cannot be had without a copy; which error says so depends on torch's version
                return None
    return values


def set_value(node: torch.fx.Node, value: torch.Tensor) -> None:
    """Let the metadata of `node` say `value`."""
    node.meta["val"] = value
    node.meta.pop("tensor_meta", None)


def make_row_major_strides(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Strides of dense rows."""
    below: Size = 1
    strides: list[Size] = []
    for size in reversed(shape):
        strides.append(below)
        below = size * below
    return tuple(reversed(strides))
