"""When the first elements of sorted rows get a range of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from triton_sample_kernels import sorted_rows

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import cast, index_value, load, op, reduce, sort
from coilwork_triton.kernel_passes.topk_range import split_topk_range

F32 = DType.F32


def kernel_of(first: int = 8) -> Kernel:
    return sorted_rows(16, 100, F32, first=first)


def with_store(kernel: Kernel, store: Store) -> Kernel:
    return replace(kernel, stores=(*kernel.stores, store))


def test_stores_of_the_first_elements_move_to_their_range() -> None:
    found = split_topk_range(kernel_of())
    assert found is not None
    assert found.axis.name == "r0" and found.index.extent is as_expr(8)
    for store in found.kernel.stores:
        assert store.mask is None
        assert found.index in store.index.free_symbols and found.axis not in store.index.free_symbols
    # what is sorted is the row still
    assert [store.value for store in found.kernel.stores] == [store.value for store in kernel_of().stores]


def test_what_follows_moves_along() -> None:
    kernel = kernel_of()
    x0, r0 = (r.symbol for r in kernel.ranges)
    element = load("in0", [x0 * 100 + r0], F32)
    total = reduce("sum", [element], [r0])
    value = op("mul", op("div", sort(element, r0), total), cast(index_value(r0), F32))
    store = replace(kernel.stores[0], value=op("add", value, element))
    found = split_topk_range(replace(kernel, stores=(store,)))
    assert found is not None
    c0 = found.index
    moved = op("mul", op("div", sort(element, r0), total), cast(index_value(c0), F32))
    assert found.kernel.stores[0].value is op("add", moved, load("in0", [x0 * 100 + c0], F32))


def test_other_stores_stay() -> None:
    kernel = kernel_of()
    x0, r0 = (r.symbol for r in kernel.ranges)
    other = Store(buffer="out2", index=x0 * 100 + r0, value=load("in0", [x0 * 100 + r0], F32))
    found = split_topk_range(with_store(kernel, other))
    assert found is not None and found.kernel.stores[-1] is other


@pytest.mark.parametrize("first", [0, 65, 99])
def test_most_of_a_row_is_the_row(first: int) -> None:
    assert split_topk_range(kernel_of(first)) is None


def test_a_sort_that_is_used_elsewhere_is_a_whole_one() -> None:
    kernel = kernel_of()
    x0, r0 = (r.symbol for r in kernel.ranges)
    element = load("in0", [x0 * 100 + r0], F32)
    whole = Store(buffer="out2", index=x0 * 100 + r0, value=sort(element, r0))
    assert split_topk_range(with_store(kernel, whole)) is None
    middle = Store(buffer="out2", index=x0, value=reduce("max", [sort(element, r0)], [r0]))
    assert split_topk_range(with_store(kernel, middle)) is None
    masked = replace(kernel.stores[0], value=op("mul", middle.value, sort(element, r0)))
    assert split_topk_range(replace(kernel, stores=(masked,))) is None
    more = sorted_rows(16, 100, F32, first=9).stores
    assert split_topk_range(replace(kernel, stores=(kernel.stores[0], more[1]))) is None
