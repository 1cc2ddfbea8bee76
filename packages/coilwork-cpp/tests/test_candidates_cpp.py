"""Directives that templates name: loops as they say, or refused by name."""

from __future__ import annotations

import pytest
import torch
from cpp_fixtures import BuildSource

from coilwork_cpp import CppCodegen
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.target import Target, get_target

AVX512, CODEGEN = get_target("x86-64-avx512"), CppCodegen()
PRODUCT = parse_kernel("""kernel @mm fast {
  range x0: `33` parallel
  range x1: `70` parallel
  range r0: `45` reduction
  arg in0: f32 in span `1485`
  arg in1: f32 in span `3150`
  arg out0: f32 out span `2310`
  body {
    t0 = load %in0[45*x0 + r0] : f32
    t1 = load %in1[70*r0 + x1] : f32
    t2 = mul(t0, t1)
    t3 = reduce sum 0 (t2) over (r0)
    store %out0[70*x0 + x1] = t3
  }
}
""")


def shown(*candidates: str, **options: object) -> str:
    return CODEGEN.describe(PRODUCT, AVX512, {"candidates": candidates, **options})


def test_directives_that_are_named_take_the_place_of_decisions() -> None:
    plain, named = shown(), shown("block x1 by 32  grain 100 at 2")
    assert "block x1 by 32\n" not in plain and "block x1 by 32\n" in named
    assert named.count("block") == 1 and "grain 100 at 2" in named and named.count("grain") == 1
    # the rest is decided as ever
    assert "vector x1" in named and "threads over x0, x1" in named


def test_results_are_the_same_in_other_blocks(build_source: BuildSource, machine: Target) -> None:
    x, w = torch.randn(33, 45), torch.randn(45, 70)
    for text in ("block x1 by 32", "block x1 by 64", "grain 1 at 1"):
        source = CODEGEN.emit(PRODUCT, machine, {"candidates": [text]})
        assert source.text != CODEGEN.emit(PRODUCT, machine, {}).text
        got = torch.empty(33, 70)
        build_source(source)(x, w, got)
        torch.testing.assert_close(got.double(), x.double() @ w.double(), rtol=1.3e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("block x7 by 32", "candidate-block"),
        ("warps 4", "candidate-warps"),
        ("vector r0 by 8", "candidate-"),
        ("block x1 by", "candidate-syntax"),
    ],
)
def test_a_candidate_that_has_no_loops_is_refused_by_name_if_it_is_alone(text: str, code: str) -> None:
    with pytest.raises(EmitError) as caught:
        CODEGEN.emit(PRODUCT, AVX512, {"candidates": [text]})
    assert caught.value.code.startswith(code) and caught.value.node == text
    assert shown(text, "block x1 by 32") == shown("block x1 by 32")


def test_one_order_for_all_sizes_is_no_templates_to_name() -> None:
    assert shown("block x1 by 32", batch_invariant=True) == shown(batch_invariant=True)


def test_candidates_are_texts() -> None:
    with pytest.raises(EmitError, match="candidates"):
        CODEGEN.emit(PRODUCT, AVX512, {"candidates": 3})
