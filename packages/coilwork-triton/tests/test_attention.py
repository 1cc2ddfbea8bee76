"""Attention in blocks: which keys a block of rows goes through, and what its text computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from kernel_bench import TritonProcess, compile_source, run_source
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import symbol
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.nodes import AttentionCore
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.scalar import Const, Op, Scalar, cast, const, index_value, iterate_postorder, op, parameter
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.attention_scores import shorten_bodies

ROW, KEY = symbol("q", extent=64), symbol("k", extent=64)


def write_kernel(*, dtype: str = "f32", keys: int = 40, length: int = 8, listed: bool = True) -> str:
    """Documents: a row counts keys of its own number, by lists of blocks of 16."""
    blocks = -(-keys // 16)
    span = 2 * keys * length
    lists = f"""
    t13 = load %in4[y1 // 16] : i32
    t14 = load %in5[r0 // 16 + {blocks} * (y1 // 16)] : i32
    t15 = load %in6[y1 // 16] : i32
    t16 = load %in7[r0 // 16 + {blocks} * (y1 // 16)] : i32"""
    lines = "blocks 16 by 16 (keys (t13, t14), full_keys (t15, t16))" if listed else ""
    args = "\n".join(
        f"  arg in{4 + k}: i32 in span `{blocks if k % 2 == 0 else blocks * blocks}`" for k in range(4)
    )
    return f"""kernel @documents fast {{
  range y0: `2` parallel
  range y1: `{keys}` parallel
  range x0: `{length}` parallel
  range r0: `{keys}` reduction
  range r1: `{length}` reduction
  arg in0: {dtype} in span `{span}` aligned
  arg in1: {dtype} in span `{span}` aligned
  arg in2: {dtype} in span `{span}` aligned
  arg in3: i32 in span `{keys}`
{args if listed else ""}
  arg out0: {dtype} out span `{span}` aligned
  arg out1: f32 out span `{2 * keys}`
  attention f32 (y0, y1, x0) over (r0, r1) {{
    t0 = load %in0[{keys * length} * y0 + {length} * y1 + r1] : {dtype}
    t1 = load %in1[{keys * length} * y0 + {length} * r0 + r1] : {dtype}
    t2 = load %in2[{keys * length} * y0 + {length} * r0 + x0] : {dtype}
    t3 = parameter 0 : f32
    t4 = const 0.5 : f32
    t5 = mul(t3, t4)
    t6 = tanh(t5)
    t7 = load %in3[y1] : i32
    t8 = load %in3[r0] : i32
    t9 = eq(t7, t8)
    t10 = const 0 : i32
    t11 = ge(t7, t10)
    t12 = bitwise_and(t9, t11)
    {lists if listed else ""}
    query t0, key t1, value t2
    score t6
    mask t12
    {lines}
    logarithms binary
  }}
  body {{
    t0 = parameter 0 : f32
    {"t1 = cast(t0) : " + dtype if dtype != "f32" else ""}
    t2 = parameter 1 : f32
    store %out0[{keys * length} * y0 + {length} * y1 + x0] = {"t0" if dtype == "f32" else "t1"}
    store %out1[{keys} * y0 + y1] = t2
  }}
}}
"""


def list_blocks(document: Tensor, wanted: Callable[[Tensor], bool]) -> list[Tensor]:
    """Counts and indices of blocks of 16 keys for blocks of 16 rows, of which `wanted` holds."""
    keeps = (document[:, None] == document) & (document[:, None] >= 0)
    found = [
        [j for j in range(0, len(document), 16) if wanted(keeps[i : i + 16, j : j + 16])]
        for i in range(0, len(document), 16)
    ]
    blocks = len(found)
    rows = [[j // 16 for j in row] + [0] * (blocks - len(row)) for row in found]
    return [
        torch.tensor([len(row) for row in found], dtype=torch.int32),
        torch.tensor(rows, dtype=torch.int32).flatten(),
    ]


def test_lists_of_blocks_say_what_is_skipped(engine: TritonProcess) -> None:
    """A block that the lists leave out is not read: what stands there changes nothing. Rows without a
    document have zeros and minus infinity.
    """
    generator = torch.Generator().manual_seed(0)
    document = torch.tensor([-1] * 3 + [0] * 13 + [1] * 16 + [2] * 8, dtype=torch.int32)
    q, k, v = (torch.randn(2 * 40 * 8, generator=generator) for _ in range(3))
    lists = [
        *list_blocks(document, lambda block: bool(block.any()) and not bool(block.all())),
        *list_blocks(document, lambda block: bool(block.all())),
    ]
    kernel = parse_kernel(write_kernel())
    verify_kernel(kernel)
    given = [q, k, v, document, *lists]
    names = [arg.name for arg in kernel.args]
    wanted = {name: x.clone() for name, x in zip(names, [*given, torch.zeros(640), torch.zeros(80)])}
    interpret_kernel(kernel, wanted, {})
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    found = run_source(engine, source, [*given, torch.zeros(640), torch.zeros(80)])
    torch.testing.assert_close(found[-2:], [wanted["out0"], wanted["out1"]], rtol=1e-4, atol=1e-5)
    assert bool((found[-2].view(2, 40, 8)[:, :3] == 0).all())
    assert bool(found[-1].view(2, 40)[:, :3].isneginf().all())
    # no list: nothing is read
    empty = [q, k, v, document, *(torch.zeros_like(x) for x in lists)]
    nothing = run_source(engine, source, [*empty, torch.ones(640), torch.ones(80)])
    assert bool((nothing[-2] == 0).all())


@pytest.mark.parametrize("listed", [True, False], ids=["lists", "mask"])
def test_attention_becomes_matrix_instructions(compiler: TritonProcess, listed: bool) -> None:
    kernel = parse_kernel(write_kernel(dtype="bf16", keys=256, length=64, listed=listed))
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    text = compile_source(compiler, source, "sm_90")
    # lists of short blocks leave units of 16 rows
    assert ("mma.sync" if listed else "wgmma.mma_async") in text and "ex2.approx" in text
    assert source.configs[0].meta[0] == ("YBLOCK", 16 if listed else 64)


def test_rows_of_unknown_length_are_refused_by_name() -> None:
    text = write_kernel(listed=False).replace("range r1: `8`", "range r1: `1024`")
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit(parse_kernel(text), get_target("sm_90"), {})
    assert caught.value.code == "attention"


GRADIENT = """kernel @gradient fast {
  range y0: `2` parallel
  range y1: `40` parallel
  range y2: `16` parallel
  range r0: `40` reduction
  range r1: `16` reduction
  arg in0: f32 in span `1280` aligned
  arg in1: f32 in span `1280` aligned
  arg in2: f32 in span `1280` aligned
  arg in3: f32 in span `2` aligned
  arg in4: f32 in span `80` aligned
  arg in5: f32 in span `80` aligned
  arg in6: f32 in span `1280` aligned
  arg out0: f32 out span `1280` aligned
  arg out1: f32 out span `1280` aligned
  arg out2: f32 out span `1280` aligned
  arg out3: f32 out span `80` aligned
  attention_gradient f32 (y0, y1, y2) over (r0, r1) {
    t0 = load %in0[r1 + 640*y0 + 16*y1] : f32
    t1 = load %in1[16*r0 + r1 + 640*y0] : f32
    t2 = load %in2[16*r0 + 640*y0 + y2] : f32
    t3 = parameter 0 : f32
    t6 = load %in3[y0] : f32
    t7 = index [y1]
    t8 = index [r0]
    t9 = sub(t7, t8)
    t10 = cast(t9) : f32
    t11 = mul(t6, t10)
    t12 = add(t3, t11)
    t13 = ge(t7, t8)
    t17 = load %in4[40*y0 + y1] : f32
    t18 = load %in5[40*y0 + y1] : f32
    t19 = load %in6[640*y0 + 16*y1 + y2] : f32
    t20 = parameter 1 : f32
    t28 = mul(t20, t10)
    query t0, key t1, value t2
    score t12
    mask t13
    logarithms binary
    inner t17, logsumexp t18, gradient t19
    slope t20
    bias t28
  }
  body {
    t0 = parameter 0 : f32
    t1 = parameter 1 : f32
    t2 = parameter 2 : f32
    t3 = parameter 3 : f32
    store %out0[r1 + 640*y0 + 16*y1] = t0
    store %out1[16*r0 + r1 + 640*y0] = t1
    store %out2[16*r0 + 640*y0 + y2] = t2
    store %out3[40*y0 + y1] = t3
  }
}
"""


def test_gradients_of_a_bias_are_summed_by_rows(engine: TritonProcess) -> None:
    """The slope of an ALiBi: no matrix of scores is in memory."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, up = (torch.randn(1280, generator=generator) / 2 for _ in range(4))
    inner, logs = (torch.rand(80, generator=generator) for _ in range(2))
    given = [q, k, v, torch.tensor([0.01, 0.03]), inner, 4 + logs, up]
    results = [torch.zeros(1280), torch.zeros(1280), torch.zeros(1280), torch.zeros(80)]
    kernel = parse_kernel(GRADIENT)
    verify_kernel(kernel)
    names = [arg.name for arg in kernel.args]
    wanted = {name: x.clone() for name, x in zip(names, [*given, *results])}
    interpret_kernel(kernel, wanted, {})
    found = run_source(engine, TritonCodegen().emit(kernel, get_target("sm_90"), {}), [*given, *results])
    for one, name in zip(found[-4:], names[-4:], strict=True):
        torch.testing.assert_close(one, wanted[name], rtol=1e-3, atol=1e-3)


def test_a_bias_by_keys_is_refused() -> None:
    text = GRADIENT.replace("store %out3[40*y0 + y1]", "store %out3[40*y0 + r0]")
    with pytest.raises(EmitError, match="along the keys of a row alone"):
        TritonCodegen().emit(parse_kernel(text), get_target("sm_90"), {})


def test_bodies_of_fast_numerics_are_short() -> None:
    """Positions are floats, constant factors one, and a cap takes one exponential beside 16-bit factors."""
    position = op("sub", index_value(ROW), index_value(KEY))
    raw = parameter(0, DType.F32)
    score = op("add", op("mul", raw, const(0.5, DType.F32)), cast(cast(position, DType.BF16), DType.F32))
    score = op("div", score, const(2.0, DType.F32))
    kernel = parse_kernel(write_kernel(listed=False))
    core = kernel.core
    assert isinstance(core, AttentionCore)

    def shorten(body: Scalar, *, is_exact: bool = False, numerics: str = "fast") -> Scalar:
        given = replace(core, weights=replace(core.weights, score=body))
        made = shorten_bodies(
            replace(kernel, numerics="fast" if numerics == "fast" else "eager"), given, is_exact=is_exact
        ).core
        assert isinstance(made, AttentionCore)
        return made.weights.score

    distance = op("sub", cast(index_value(ROW), DType.F32), cast(index_value(KEY), DType.F32))
    half = const(0.5, DType.F32)
    assert shorten(score) is op("mul", op("add", op("mul", raw, half), distance), half)
    assert shorten(score, numerics="eager") is score
    double = op("mul", op("div", raw, const(4.0, DType.F32)), const(2.0, DType.F32))
    assert shorten(double) is op("mul", raw, half)
    capped = shorten(op("tanh", double))
    assert not any(isinstance(v, Op) and v.op == "tanh" for v in iterate_postorder((capped,)))
    assert shorten(op("tanh", double), is_exact=True) is op("tanh", op("mul", raw, half))
    least = const(-3.4e38, DType.F32)
    (filled,) = [v for v in iterate_postorder((shorten(op("maximum", raw, least)),)) if isinstance(v, Const)]
    assert float(filled.value) * 1.45 > -3.4e38


@pytest.mark.parametrize("heads", [4, 34])
def test_programs_with_long_loops_begin_first(engine: TritonProcess, heads: int) -> None:
    """Rows of all heads, as far as they go together; each block of each head has one program."""
    text = GRADIENT.replace("range y0: `2`", f"range y0: `{heads}`")
    for size in ("1280", "80", "2"):
        text = text.replace(f"span `{size}`", f"span `{int(size) * heads // 2}`")
    kernel = parse_kernel(text)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    assert ("first_point" in source.text) == (heads > 32)
    generator = torch.Generator().manual_seed(0)
    sizes = [arg.span for arg in kernel.args]
    tensors = [torch.rand(int(str(size)), generator=generator) for size in sizes]
    wanted = {arg.name: x.clone() for arg, x in zip(kernel.args, tensors)}
    interpret_kernel(kernel, wanted, {})
    found = run_source(engine, source, tensors)
    for one, arg in zip(found[-4:], kernel.args[-4:], strict=True):
        torch.testing.assert_close(one, wanted[arg.name], rtol=1e-4, atol=1e-3)
