"""What the generator declares is what its kernels do: which rows stay on chip, which are shared, which are
products.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from contraction_kernels import Product, product_kernel
from kernel_bench import WALKS, along, arg
from sharing_kernels import shared_rows
from triton_sample_kernels import SAMPLES

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.mapping import Keep, Loop, Share, Unit, find_fault
from coilwork_ir.scalar import Scalar, load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton.capabilities import get_capabilities
from coilwork_triton.codegen import TritonCodegen, find_mapping
from coilwork_triton.options import TritonOptions, parse_options

H200, F32 = get_target("sm_90"), DType.F32
CAN = get_capabilities(H200)


def sums(length: int, *, across: bool = False, values: int = 1) -> Kernel:
    """Sums of 4096 rows of so many points, or columns, of products of so many values."""
    x, r = along("x0", 4096), along("r0", length, "reduction")
    at = r.symbol * 4096 + x.symbol if across else x.symbol * length + r.symbol
    product: Scalar = load("in0", [at], F32)
    for k in range(1, values):
        product = op("add", product, load(f"in{k}", [at], F32))
    return Kernel(
        name="sums",
        ranges=(x, r),
        args=(*(arg(f"in{k}", F32, 4096 * length) for k in range(values)), arg("out0", F32, 4096)),
        stores=(Store(buffer="out0", index=x.symbol, value=reduce("sum", [product], [r.symbol])),),
    )


def is_kept(kernel: Kernel, walk: str = "persistent") -> bool:
    mapping = find_mapping(kernel, H200, parse_options(WALKS[walk])).versions.general
    assert (mapping.find(Keep) is None) == (mapping.find(Loop) is not None)
    return mapping.find(Keep) is not None


@pytest.mark.parametrize(
    ("length", "across", "values"),
    [
        (16384, False, 1),
        (16384, False, 3),
        (8192, False, 5),
        (5461, False, 6),
        (512, True, 1),
        (512, True, 4),
    ],
)
def test_the_longest_rows_that_schedules_count_on_are_kept(length: int, across: bool, values: int) -> None:
    assert CAN.rows.keeps(length, across=across, values=values)
    assert not CAN.rows.keeps(length + 1, across=across, values=values)
    assert is_kept(sums(length, across=across, values=values))
    assert not is_kept(sums(length + 1, across=across, values=values))
    assert not is_kept(sums(length, across=across, values=values), "looped")


def test_rows_of_open_length_are_kept_if_likely_ones_are() -> None:
    n0, n1 = symbol("n0", lo=1), symbol("n1", lo=1)
    x, r = along("x0", n0), along("r0", n1, "reduction")
    value = reduce("sum", [load("in0", [x.symbol * n1 + r.symbol], F32)], [r.symbol])
    kernel = Kernel(
        name="sums",
        ranges=(x, r),
        sizes=(n0, n1),
        args=(arg("in0", F32, n0 * n1), arg("out0", F32, n0)),
        stores=(Store(buffer="out0", index=x.symbol, value=value),),
    )
    for likely, kept in ((4096, True), (16384, True), (32768, False), (0, False)):
        versions = find_mapping(kernel, H200, TritonOptions(likely=(64, likely))).versions
        assert (versions.versions[0].mapping.find(Keep) is not None) is kept
        assert versions.general.find(Loop) is not None


def test_what_is_declared_is_written() -> None:
    assert CAN.shares_rows and CAN.contracts and CAN.combines and CAN.scans
    scan = shared_rows("sum", 3, 20000, 8192, F32)
    mapped = find_mapping(scan, H200, TritonOptions())
    share = mapped.versions.general.find(Share)
    assert share == Share(ranges=("r0",), by=8192, workspace="io0")
    # one word less leaves room for no pieces of that length
    args = tuple(replace(a, span=a.span - 1) if a.name == "io0" else a for a in scan.args)
    less = replace(scan, args=args)
    longer = find_mapping(less, H200, TritonOptions()).versions.general.find(Share)
    assert longer == Share(ranges=("r0",), by=16384, workspace="io0")
    assert find_fault(less, mapped.versions.general) is not None
    product = product_kernel(Product(m=64, n=64, k=64, left=F32, right=F32))
    assert find_mapping(product, H200, TritonOptions()).versions.general.find(Unit) is not None
    assert TritonCodegen().emit(SAMPLES["together"], H200, {}).text


def test_equal_targets_have_equal_capabilities() -> None:
    for name in ("sm_80", "sm_90", "gfx942"):
        assert TritonCodegen().capabilities(get_target(name)) == get_capabilities(get_target(name))
    assert CAN.sorting is not None and CAN.sorting.longest == 4096 and not CAN.cuts_rows
