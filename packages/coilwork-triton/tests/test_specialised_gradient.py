"""The gradient of attention whose warps have roles: which has them, what is refused, and machine code.

What the text computes is tested in `integration_tests/test_specialised_gradient.py`.
"""

from __future__ import annotations

import pytest
from kernel_bench import TritonProcess, compile_source

from coilwork_ir.errors import EmitError
from coilwork_ir.index import as_int
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import parse_mapping
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.attention_roles import explain_no_roles

HOPPER = get_target("sm_90")
# Causal; two heads share keys.
TEXT = """kernel @gradient fast {
  range y0: `8` parallel
  range y1: `1024` parallel
  range x0: `128` parallel
  range r0: `1024` reduction
  range r1: `128` reduction
  arg in0: bf16 in span `1048576` aligned
  arg in1: bf16 in span `524288` aligned
  arg in2: bf16 in span `524288` aligned
  arg in3: bf16 in span `1048576` aligned
  arg in4: f32 in span `8192` aligned
  arg in5: f32 in span `8192` aligned
  arg out0: bf16 out span `1048576` aligned
  arg out1: bf16 out span `524288` aligned
  arg out2: bf16 out span `524288` aligned
  attention_gradient f32 (y0, y1, x0) over (r0, r1) {
    t0 = load %in0[131072*y0 + 128*y1 + r1] : bf16
    t1 = load %in1[131072*(y0 // 2) + 128*r0 + r1] : bf16
    t2 = load %in2[131072*(y0 // 2) + 128*r0 + x0] : bf16
    t3 = parameter 0 : f32
    t4 = const 0.125 : f32
    t5 = mul(t3, t4)
    t6 = parameter 1 : f32
    t7 = mul(t6, t4)
    t8 = index [y1]
    t9 = index [r0]
    t10 = ge(t8, t9)
    t11 = load %in3[131072*y0 + 128*y1 + x0] : bf16
    t12 = load %in4[1024*y0 + y1] : f32
    t13 = load %in5[1024*y0 + y1] : f32
    query t0, key t1, value t2
    score t5
    mask t10
    logarithms binary
    inner t13, logsumexp t12, gradient t11
    slope t7
  }
  body {
    t0 = parameter 0 : f32
    t1 = parameter 1 : f32
    t2 = parameter 2 : f32
    t3 = cast(t0) : bf16
    t4 = cast(t1) : bf16
    t5 = cast(t2) : bf16
    store %out0[131072*y0 + 128*y1 + r1] = t3
    store %out1[131072*(y0 // 2) + 128*r0 + r1] = t4
    store %out2[131072*(y0 // 2) + 128*r0 + x0] = t5
  }
}
"""
# Each head has its own keys.
ALONE = (("(y0 // 2)", "y0"), ("`524288`", "`1048576`"))
MAPPING = (
    "tile x0 by 128 tile y1 by 128 tile y0 by 1 flat resident 4 loop r0 by 64 stages 4 keep r1 by 128 "
    "unit mma specialise 2 consumers warps 4 index i32 contract"
)
WINDOW = (
    "t14 = ge(t8, t9)\n    t15 = index [y1 - r0]\n    t16 = const 99 : i64\n    t17 = le(t15, t16)\n"
    "    t10 = bitwise_and(t14, t17)"
)
OUTPUT = (
    ("inner t13,", "output t14,"),
    ("    query", "    t14 = load %in3[131072*y0 + 128*y1 + x0] : bf16\n    query"),
)
BIAS = (
    ("slope t7", "slope t7\n    bias t6"),
    ("  arg out0", "  arg out3: f32 out span `8192` aligned\n  arg out0"),
    ("t5 = cast(t2) : bf16", "t5 = cast(t2) : bf16\n    t6 = parameter 3 : f32"),
    ("128*r0 + x0] = t5", "128*r0 + x0] = t5\n    store %out3[1024*y0 + y1] = t6"),
)


def change(*changes: tuple[str, str]) -> str:
    """`TEXT` with `changes`."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_each_pass_has_a_loader_and_consumers() -> None:
    source = TritonCodegen().emit_mapping(parse_kernel(TEXT), parse_mapping(MAPPING), HOPPER)
    assert source.text.count("gl.warp_specialize(") == 2 and "tl.dot(" not in source.text
    assert [as_int(extent) for extent in source.grid] == [4]
    with pytest.raises(EmitError, match="no groups of warps multiply"):
        TritonCodegen().emit_mapping(parse_kernel(TEXT), parse_mapping(MAPPING), get_target("sm_80"))


@pytest.mark.parametrize(
    ("changes", "is_proposed"),
    [
        (ALONE, True),
        ((), False),
        ((*ALONE, ("`1024`", "`256`")), False),
        ((*ALONE, ("t5 = mul(t3, t4)", "t5 = tanh(t3)")), False),
        ((*ALONE, ("t10 = ge(t8, t9)", WINDOW)), False),
    ],
)
def test_long_loops_of_cheap_scores_have_roles(
    changes: tuple[tuple[str, str], ...], is_proposed: bool
) -> None:
    source = TritonCodegen().emit(parse_kernel(change(*changes)), HOPPER, {})
    assert ("gl.warp_specialize(" in source.text) == is_proposed
    if is_proposed:
        assert [as_int(extent) for extent in source.grid] == [HOPPER.multiprocessors]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (OUTPUT, "what all weights of a row pass on is not given"),
        (BIAS, "the gradient of a bias is summed"),
        ((("gradient t11", "gradient t14"), ("    query", "    t14 = neg(t11)\n    query")), "is computed"),
        ((("bf16", "f32"),), "the query has no 16 bits"),
    ],
)
def test_other_gradients_have_none(changes: tuple[tuple[str, str], ...], reason: str) -> None:
    found = explain_no_roles(parse_kernel(change(*changes)), HOPPER)
    assert found is not None and reason in found


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("specialise 2", "specialise 4", "specialise"),
        ("y1 by 128", "y1 by 64", "tile"),
        ("r0 by 64", "r0 by 128", "loop"),
        ("stages 4", "stages 6", "loop"),
        ("stages 4", "stages 1", "loop"),
        ("index i32", "index i64", "index"),
    ],
)
def test_mappings_are_refused_by_name(old: str, new: str, code: str) -> None:
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit_mapping(parse_kernel(TEXT), parse_mapping(MAPPING.replace(old, new)), HOPPER)
    assert code in caught.value.code


def test_roles_become_machine_code(compiler: TritonProcess) -> None:
    text = change(("    mask t10\n", ""), ("131072*(y0 // 2)", "131072*y0"), ("524288", "1048576"))
    mapping = MAPPING.replace("y1 by 128", "y1 by 64").replace("2 consumers", "1 consumers")
    source = TritonCodegen().emit_mapping(parse_kernel(text), parse_mapping(mapping), HOPPER)
    found = compile_source(compiler, source, "sm_90")
    assert "wgmma.mma_async" in found and "cp.async.bulk.tensor" in found
