"""Attention whose warps have roles: which attention has them, what is refused by name, and machine code.

What the text computes is tested in `integration_tests/test_specialised_attention.py`.
"""

from __future__ import annotations

import pytest
from kernel_bench import TritonProcess, compile_source

from coilwork_ir.errors import EmitError, VerifyError
from coilwork_ir.index import as_int
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.attention import find_core
from coilwork_ir.kernels.nodes import AttentionCore
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import parse_mapping
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.attention_roles import explain_no_roles, find_operands

HOPPER = get_target("sm_90")
# Causal, with slopes. Queries, keys and values of each head are columns of one matrix; two heads share keys.
TEXT = """kernel @attention fast {
  range y0: `8` parallel
  range y1: `1024` parallel
  range x0: `64` parallel
  range r0: `1024` reduction
  range r1: `64` reduction
  arg in0: bf16 in span `1048576` aligned
  arg in3: f32 in span `8` aligned
  arg out0: bf16 out span `524288` aligned
  attention f32 (y0, y1, x0) over (r0, r1) {
    t0 = load %in0[64*y0 + 1024*y1 + r1] : bf16
    t1 = load %in0[512 + 64*(y0 // 2) + 1024*r0 + r1] : bf16
    t2 = load %in0[768 + 64*(y0 // 2) + 1024*r0 + x0] : bf16
    t3 = parameter 0 : f32
    t4 = const 0.125 : f32
    t5 = mul(t3, t4)
    t6 = load %in3[y0] : f32
    t7 = index [y1]
    t8 = index [r0]
    t9 = sub(t8, t7)
    t10 = cast(t9) : f32
    t11 = mul(t6, t10)
    t12 = add(t5, t11)
    t13 = ge(t7, t8)
    query t0, key t1, value t2
    score t12
    mask t13
    logarithms binary
  }
  body {
    t0 = parameter 0 : f32
    t1 = cast(t0) : bf16
    store %out0[65536*y0 + 64*y1 + x0] = t1
  }
}
"""
MAPPING = (
    "tile x0 by 64 tile y1 by 128 tile y0 by 1 flat resident 4 loop r0 by 128 stages 2 keep r1 by 64 "
    "unit mma specialise 2 consumers warps 4 index i32 contract"
)


def get_core(kernel: Kernel) -> AttentionCore:
    core = find_core(kernel)
    assert isinstance(core, AttentionCore)
    return core


def test_attention_has_roles_if_a_mapping_says_so() -> None:
    kernel = parse_kernel(TEXT)
    source = TritonCodegen().emit_mapping(kernel, parse_mapping(MAPPING), HOPPER)
    assert "gl.warp_specialize(" in source.text and "tl.dot(" not in source.text
    assert [as_int(extent) for extent in source.grid] == [4]
    assert "tl.dot(" in TritonCodegen().emit(kernel, HOPPER, {}).text
    with pytest.raises(EmitError, match="no groups of warps multiply"):
        TritonCodegen().emit_mapping(kernel, parse_mapping(MAPPING), get_target("sm_80"))


def widen(text: str) -> str:
    """`TEXT` with heads of 128 columns."""
    for old, new in (
        ("64*", "128*"),
        ("`64`", "`128`"),
        ("1024*", "2048*"),
        ("512 +", "1024 +"),
        ("768 +", "1536 +"),
        ("1048576", "2097152"),
        ("524288", "1048576"),
        ("65536*", "131072*"),
    ):
        text = text.replace(old, new)
    return text


WINDOW = (
    ("mask t13", "mask t17"),
    (
        "    query",
        "t14 = index [y1 - r0]\n t15 = const 99 : i64\n t16 = le(t14, t15)\n"
        "t17 = bitwise_and(t13, t16)\n    query",
    ),
)


FEW, COSTLY = ("`1024`", "`256`"), ("t12 = add(t5, t11)", "t12 = tanh(t11)")
MANY = (("`1024`", "`4096`"), ("1048576", "4194304"), ("524288", "2097152"), ("65536*", "262144*"))


BLOCKS = "blocks 128 by 128 (keys (t20, t21))\n    "
LISTS = "    t20 = load %in4[y1 // 128] : i32\n    t21 = load %in4[r0 // 128] : i32\n"
SAME = (
    "t9 = load %in4[y1] : i32\n    t30 = load %in4[r0] : i32\n    t31 = eq(t9, t30)\n"
    "    t13 = bitwise_and(t31, t31)"
)


@pytest.mark.parametrize(
    ("head", "changes", "is_proposed"),
    [
        (128, (), True),
        (128, (FEW,), False),
        (128, (COSTLY,), False),
        (128, WINDOW, True),
        (64, (), False),
        (64, MANY, True),
        (64, (*MANY, *WINDOW), False),
    ],
)
def test_long_loops_of_cheap_scores_have_roles(
    head: int, changes: tuple[tuple[str, str], ...], is_proposed: bool
) -> None:
    text = widen(TEXT) if head == 128 else TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    source = TritonCodegen().emit(parse_kernel(text), HOPPER, {})
    assert ("gl.warp_specialize(" in source.text) == is_proposed
    if is_proposed:
        assert [as_int(extent) for extent in source.grid] == [HOPPER.multiprocessors]
        rows, keys = (dict(source.configs[0].meta)[name] for name in ("YBLOCK", "R0_BLOCK"))
        assert (rows, keys) == ((128, 128) if head == 128 else (256, 64))


def test_heads_whose_blocks_are_wide_have_two_groups() -> None:
    text = TEXT
    for old, new in (*MANY, ("range x0: `64`", "range x0: `96`"), ("768 + 64", "768 + 0")):
        text = text.replace(old, new)
    source = TritonCodegen().emit(parse_kernel(text), HOPPER, {})
    assert dict(source.configs[0].meta)["YBLOCK"] == 128


@pytest.mark.parametrize("mask", ["causal", "documents"])
def test_lists_of_blocks_bound_tiles_only_if_they_are_read(mask: str) -> None:
    """Comparisons of positions say more of a causal mask than its lists."""
    text = TEXT
    for old, new in (*MANY, ("logarithms", BLOCKS + "logarithms"), ("    query", f"{LISTS}    query")):
        text = text.replace(old, new)
    text = text.replace("  arg out0", "  arg in4: i32 in span `4096`\n  arg out0")
    if mask == "documents":
        text = text.replace("t13 = ge(t7, t8)", SAME)
    source = TritonCodegen().emit(parse_kernel(text), HOPPER, {})
    rows = dict(source.configs[0].meta)["YBLOCK"]
    assert (rows == 256) == (mask == "causal") and rows in (64, 256)


def test_four_groups_have_narrow_heads() -> None:
    """Registers have no room for the sums of wide ones."""
    mapping = MAPPING.replace("y1 by 128", "y1 by 256").replace("by 128 stages 2", "by 64 stages 4")
    mapping = mapping.replace("specialise 2", "specialise 4")
    TritonCodegen().emit_mapping(parse_kernel(TEXT), parse_mapping(mapping), HOPPER)
    for kernel, changed in ((TEXT, mapping.replace("64 stages 4", "128 stages 2")), (widen(TEXT), mapping)):
        wide = changed if kernel is TEXT else changed.replace("x0 by 64", "x0 by 128")
        wide = wide if kernel is TEXT else wide.replace("r1 by 64", "r1 by 128")
        with pytest.raises(EmitError, match="registers have no room") as caught:
            TritonCodegen().emit_mapping(parse_kernel(kernel), parse_mapping(wide), HOPPER)
        assert "specialise" in caught.value.code


def test_operands_are_parts_of_one_matrix() -> None:
    kernel = parse_kernel(TEXT)
    found = find_operands(kernel, get_core(kernel))
    assert not isinstance(found, str)
    query, key, value = found
    assert [as_int(rows.start) for rows in found] == [0, 512, 768]
    assert [as_int(rows.stride) for rows in found] == [1024] * 3
    assert [as_int(one.extent) for rows in found for one in rows.outer] == [8, 4, 4]
    assert [as_int(one.stride) for rows in (query, key, value) for one in rows.outer] == [64] * 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ((("bf16", "f32"),), "the query has no 16 bits"),
        ((("query t0", "query t14"), ("query", "t14 = neg(t0)\n    query")), "the query is computed"),
        ((("1048576` aligned", "1048576`"),), "in0 may begin anywhere"),
        ((("512 + 64", "510 + 64"),), "rows of in0 begin between vectors"),
        ((("1024*y1 + r1", "1024*r1 + y1"),), "neighbours in in0 are no neighbours of a row"),
        ((("range x0: `64`", "range x0: `24`"),), "a block has no 64 to 128 columns"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_attention_has_none(changes: tuple[tuple[str, str], ...], reason: str) -> None:
    text = TEXT
    for old, new in changes:
        text = text.replace(old, new, 1 if "t14" in new else -1)
    kernel = parse_kernel(text)
    assert explain_no_roles(kernel, HOPPER) == reason


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("y1 by 128", "y1 by 64", "tile"),
        ("specialise 2", "specialise 5", "specialise"),
        ("consumers", "consumers pingpong", "specialise"),
        ("by 128 stages", "by 32 stages", "loop"),
        ("stages 2", "stages 6", "loop"),
        ("stages 2", "stages 1", "loop"),
        ("warps 4", "warps 8", "warps"),
        ("index i32", "index i64", "index"),
        ("specialise 2 consumers", "", "resident"),
    ],
)
def test_mappings_are_refused_by_name(old: str, new: str, code: str) -> None:
    kernel = parse_kernel(TEXT.replace("`64`", "`128`"))
    mapping = MAPPING.replace("64", "128")
    TritonCodegen().emit_mapping(kernel, parse_mapping(mapping), HOPPER)
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit_mapping(kernel, parse_mapping(mapping.replace(old, new)), HOPPER)
    assert code in caught.value.code


def test_a_program_with_one_tile_has_no_roles() -> None:
    kernel = parse_kernel(TEXT)
    with pytest.raises(VerifyError, match="a program has one tile"):
        TritonCodegen().emit_mapping(kernel, parse_mapping(MAPPING.replace("resident 4", "")), HOPPER)


def test_roles_become_machine_code(compiler: TritonProcess) -> None:
    """The tensor cores take weights from registers, and consumers have what registers the loader leaves."""
    kernel = parse_kernel(TEXT.replace("    mask t13\n", ""))
    mapping = MAPPING.replace("y1 by 128", "y1 by 64").replace("2 consumers", "1 consumers")
    source = TritonCodegen().emit_mapping(kernel, parse_mapping(mapping), HOPPER)
    text = compile_source(compiler, source, "sm_90")
    assert "wgmma.mma_async" in text and "cp.async.bulk.tensor" in text
    assert "setmaxnreg" in text
