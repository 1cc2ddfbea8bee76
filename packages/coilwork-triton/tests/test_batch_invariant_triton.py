"""`batch_invariant`: the launch of a kernel that reduces or multiplies does not follow from how many rows
there are.
"""

from __future__ import annotations

import pytest
from contraction_kernels import Product, product_kernel
from kernel_bench import along, arg

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import load, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32 = DType.F32
INVARIANT: dict[str, object] = {"batch_invariant": True}


def sums(rows: int, length: int) -> KernelSource:
    x, r = along("x0", rows), along("r0", length, "reduction")
    kernel = Kernel(
        name="sums",
        ranges=(x, r),
        args=(arg("in0", F32, rows * length), arg("out0", F32, rows)),
        stores=(
            Store(
                buffer="out0",
                index=x.symbol,
                value=reduce("sum", [load("in0", [x.symbol * length + r.symbol], F32)], [r.symbol]),
            ),
        ),
    )
    return TritonCodegen().emit(kernel, get_target("sm_90"), INVARIANT)


def test_a_row_per_program_in_blocks_of_one_length() -> None:
    found = {(config.meta, config.num_warps) for rows in (1, 7, 5000) for config in sums(rows, 300).configs}
    found |= {(config.meta, config.num_warps) for config in sums(7, 33000).configs}
    assert len(found) == 1
    ((meta, _),) = found
    assert dict(meta)["R0_BLOCK"] == 1024 and dict(meta).get("XBLOCK", 1) == 1


def test_a_search_has_nothing_to_vary_and_no_access_is_wide() -> None:
    source = sums(7, 256)
    assert source.space.values == () and len(source.configs) == 1
    assert not any(a.aligned for a in source.args)


def emitted(rows: int, dtype: DType, options: dict[str, object]) -> KernelSource:
    kernel = product_kernel(Product(m=rows, n=96, k=80, left=dtype, right=dtype))
    return TritonCodegen().emit(kernel, get_target("sm_90"), options)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_products_have_blocks_of_one_size(dtype: DType) -> None:
    found = {emitted(rows, dtype, INVARIANT).configs for rows in (2, 17, 4000)}
    assert len(found) == 1 and all(len(configs) == 1 for configs in found)


def test_the_option_is_a_truth_value() -> None:
    with pytest.raises(EmitError, match="batch_invariant is True or False"):
        emitted(2, F32, {"batch_invariant": "yes"})
