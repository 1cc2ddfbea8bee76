"""Blocks that templates name for products: launched as they say, or refused by the directive's name."""

from __future__ import annotations

import pytest
from contraction_kernels import Product, int8_linear, product_kernel, product_over_two_ranges
from source_checks import versions_of

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping.product_blocks import propose_candidates
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.launch.parameters import BLOCKS, STAGES

H200, CODEGEN = get_target("sm_90"), TritonCodegen()
BF16, F32 = DType.BF16, DType.F32
SMALL = "tile x2 by 64  tile x1 by 32  loop r0 by 32 stages 2  warps 2"
LARGE = "tile x2 by 128  tile x1 by 64  loop r0 by 64 stages 3  warps 8"
PRODUCT = product_kernel(Product(m=256, n=512, k=128, left=BF16, right=BF16))


def blocks(kernel: Kernel, *candidates: str, **options: object) -> list[tuple[int, ...]]:
    """Columns, rows, terms, stages and warps of each launch."""
    source = CODEGEN.emit(kernel, H200, {"candidates": candidates, **options})
    names = (BLOCKS["x"], BLOCKS["y"], BLOCKS["r"], STAGES)
    return [(*(dict(one.meta)[name] for name in names), one.num_warps) for one in source.configs]


def test_candidates_are_launched_in_their_order() -> None:
    assert blocks(PRODUCT, SMALL, LARGE) == [(64, 32, 32, 2, 2), (128, 64, 64, 3, 8)]
    assert blocks(PRODUCT, LARGE, SMALL, max_configs=1) == [(128, 64, 64, 3, 8)]
    assert "tile x1 by 32" in CODEGEN.describe(PRODUCT, H200, {"candidates": [SMALL]})


def test_a_search_may_try_other_blocks() -> None:
    mapping = versions_of(CODEGEN.emit(PRODUCT, H200, {"candidates": [SMALL]})).versions[0].mapping
    (columns,) = [one for one in mapping.open_numbers if one.name == BLOCKS["x"]]
    assert columns.values[0] == 64 and 128 in columns.values


@pytest.mark.parametrize(
    "kernel",
    [
        product_kernel(Product(m=m, n=n, k=k, left=dtype, right=dtype, batch=batch))
        for m, n, k, dtype, batch in (
            (8192, 8192, 512, BF16, 1),
            (256, 512, 128, BF16, 3),
            (16, 4096, 4096, BF16, 1),
            (4096, 24, 77, BF16, 1),
            (300, 300, 300, F32, 1),
        )
    ]
    + [int8_linear(m=16, n=4096, k=4096, half=BF16), product_over_two_ranges()],
    ids=lambda kernel: str([str(r.extent) for r in kernel.ranges]),
)
def test_what_existing_templates_name_gives_the_text_that_there_was(kernel: Kernel) -> None:
    texts = [one.directives for one in propose_candidates(kernel, H200)]
    assert texts and CODEGEN.emit(kernel, H200, {"candidates": texts}) == CODEGEN.emit(kernel, H200, {})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("tile x2 by 48  tile x1 by 32  loop r0 by 32 stages 2", "candidate-tile"),
        ("tile x2 by 64  loop r0 by 32 stages 2", "candidate-tile"),
        ("tile x2 by 256  tile x1 by 256  loop r0 by 512 stages 6  warps 8", "candidate-tile"),
        ("tile x2 by 64  tile x1 by 32", "candidate-loop"),
        ("tile x2 by 64  tile x1 by 32  loop r0 by 32 stages 9", "candidate-loop"),
        ("tile x2 by 64  tile x1 by 32  loop r0 by 32 stages 2  warps 3", "candidate-warps"),
        ("tile x2 by ?a in 64 32  tile x1 by 32  loop r0 by 32 stages 2", "candidate-choose"),
        ("tile x2 by 64  tile x1 by 32  loop r0 by 32 stages 2  vector x2 by 8", "candidate-vector"),
        ("tile x2 by", "candidate-syntax"),
    ],
)
def test_a_candidate_that_is_none_is_refused_by_name_if_it_is_alone(text: str, code: str) -> None:
    with pytest.raises(EmitError) as caught:
        CODEGEN.emit(PRODUCT, H200, {"candidates": [text]})
    assert caught.value.code == code and caught.value.node == text
    # another one is taken in its place
    assert blocks(PRODUCT, text, SMALL) == [(64, 32, 32, 2, 2)]


def test_one_launch_for_all_sizes_is_no_templates_to_name() -> None:
    assert blocks(PRODUCT, SMALL, batch_invariant=True) == blocks(PRODUCT, batch_invariant=True)


def test_what_a_user_gives_goes_before_candidates() -> None:
    given = CODEGEN.describe(PRODUCT, H200, {"candidates": [LARGE]})
    assert blocks(PRODUCT, SMALL, mappings={"product": given}) == [(128, 64, 64, 3, 8)]


def test_candidates_are_texts() -> None:
    with pytest.raises(EmitError, match="candidates"):
        CODEGEN.emit(PRODUCT, H200, {"candidates": [3]})
