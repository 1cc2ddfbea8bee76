"""Attention and its gradient in the loop IR: what they mean, how they print, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tensor_results import tensors_of
from torch import Tensor

from coilwork_ir.buffers import Buffer, Ref, SymbolOutput, make_contiguous_strides
from coilwork_ir.conformance import ATTENTION_CASES, AttentionCase, check_attention
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import ParseError, VerifyError
from coilwork_ir.index import as_expr
from coilwork_ir.loops import Attention, AttentionGradient, Graph
from coilwork_ir.loops.access import (
    list_bodies,
    list_bound_symbols,
    list_defined_buffers,
    list_memory_aliases,
    list_overwritten_buffers,
    list_read_buffers,
)
from coilwork_ir.loops.attention import (
    Causal,
    GradientOperands,
    LibraryAttention,
    make_attention,
    make_attention_gradient,
    match_library_attention,
)
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.layouts import Fixed, find_layouts
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph

CAUSAL = """graph @causal {
  symbol s0 in [0, inf]
  input %q: f32[2, 4, s0, 8]
  input %k: f32[2, 2, s0, 8]
  input %v: f32[2, 2, s0, 6]
  (%o: f32[2, 4, s0, 6], %s: f32[2, 4, s0, 1]) = attention f32 [i0: 2, i1: 4, i2: s0, i3: 6 | r0: s0, r1: 8] {
    t0 = load %q[i0, i1, i2, r1] : f32
    t1 = load %k[i0, i1 // 2, r0, r1] : f32
    t2 = load %v[i0, i1 // 2, r0, i3] : f32
    t3 = parameter 0 : f32
    t4 = const 0.25 : f32
    t5 = mul(t3, t4)
    t6 = index [r0]
    t7 = index [i2]
    t8 = le(t6, t7)
    query t0, key t1, value t2
    score t5
    mask t8
    logsumexp at [i0, i1, i2, 0]
  } loc("sdpa" "aten.scaled_dot_product_attention.default" "model.py":3 "y = attend(q, k, v)" "attn")
  return (%o, %s)
}
"""
# A cap, and a slope per head that grows with the distance.
CAPPED = """graph @capped {
  input %q: bf16[3, 4, 8]
  input %k: bf16[3, 5, 8]
  input %v: bf16[3, 5, 8]
  input %slopes: f32[3]
  (%o: bf16[3, 4, 8], _) = attention f32 [i0: 3, i1: 4, i2: 8 | r0: 5, r1: 8] {
    t0 = load %q[i0, i1, r1] : bf16
    t1 = load %k[i0, r0, r1] : bf16
    t2 = load %v[i0, r0, i2] : bf16
    t3 = parameter 0 : f32
    t4 = tanh(t3)
    t5 = const 2.0 : f32
    t6 = mul(t4, t5)
    t7 = index [-i1 + r0]
    t8 = cast(t7) : f32
    t9 = load %slopes[i0] : f32
    t10 = mul(t8, t9)
    t11 = add(t6, t10)
    query t0, key t1, value t2
    score t11
  }
  return (%o)
}
"""
DROPPED = """graph @dropped {
  symbol s0 in [0, inf]
  input %q: f32[1, 2, s0, 8]
  (%o: f32[1, 2, s0, 8], %s: f32[1, 2, s0]) = attention f32 [i0: 1, i1: 2, i2: s0, i3: 8 | r0: s0, r1: 8] \
flash (_, _, size s1 in [0, inf], _, %seed: i64[2], %unused: i64[], %mask: f32[0]) dropout 0.5 {
    t0 = load %q[i0, i1, i2, r1] : f32
    t1 = load %q[i0, i1, r0, r1] : f32
    t2 = load %q[i0, i1, r0, i3] : f32
    t3 = parameter 0 : f32
    query t0, key t1, value t2
    score t3
    logsumexp at [i0, i1, i2]
  }
  %g: f32[1, 2, s0, 8] = pointwise [i0: 1, i1: 2, i2: s0, i3: 8] {
    t0 = index [i3]
    t1 = cast(t0) : f32
    yield t1
  }
  (%dq: f32[1, 2, s0, 8], %dk: f32[1, 2, s0, 8], %dv: f32[1, 2, s0, 8], _) = attention_gradient f32 \
[i0: 1, i1: 2, i2: s0, i3: 8 | r0: s0, r1: 8] \
flash (none, none, `s1`, `s0`, %seed, %unused, none) dropout 0.5 {
    t0 = load %q[i0, i1, i2, r1] : f32
    t1 = load %q[i0, i1, r0, r1] : f32
    t2 = load %q[i0, i1, r0, i3] : f32
    t3 = parameter 0 : f32
    t4 = load %o[i0, i1, i2, i3] : f32
    t5 = load %s[i0, i1, i2] : f32
    t6 = load %g[i0, i1, i2, i3] : f32
    t7 = parameter 1 : f32
    query t0, key t1, value t2
    score t3
    output t4, logsumexp t5, gradient t6
    slope t7
  }
  return (%o, %dq, %dk, %dv, `s1`)
}
"""
GRADIENT = """graph @gradient {
  input %g: f64[2, 4, 3, 6]
  input %q: f64[2, 4, 3, 8]
  input %k: f64[2, 2, 5, 8]
  input %v: f64[2, 2, 5, 6]
  input %b: f64[4, 1, 5]
  (%o: f64[2, 4, 3, 6], %s: f64[2, 4, 3]) = attention f64 [i0: 2, i1: 4, i2: 3, i3: 6 | r0: 5, r1: 8] {
    t0 = load %q[i0, i1, i2, r1] : f64
    t1 = load %k[i0, i1 // 2, r0, r1] : f64
    t2 = load %v[i0, i1 // 2, r0, i3] : f64
    t3 = parameter 0 : f64
    t4 = tanh(t3)
    t5 = load %b[i1, 0, r0] : f64
    t6 = add(t4, t5)
    t7 = index [-i2 + r0]
    t8 = const 2 : i64
    t9 = le(t7, t8)
    query t0, key t1, value t2
    score t6
    mask t9
    logsumexp at [i0, i1, i2]
  }
  (%dq: f64[2, 4, 3, 8], %dk: f64[2, 2, 5, 8], %dv: f64[2, 2, 5, 6], %db: f64[4, 1, 5]) \
= attention_gradient f64 [i0: 2, i1: 4, i2: 3, i3: 6 | r0: 5, r1: 8] {
    t0 = load %q[i0, i1, i2, r1] : f64
    t1 = load %k[i0, i1 // 2, r0, r1] : f64
    t2 = load %v[i0, i1 // 2, r0, i3] : f64
    t3 = parameter 0 : f64
    t4 = tanh(t3)
    t5 = load %b[i1, 0, r0] : f64
    t6 = add(t4, t5)
    t7 = index [-i2 + r0]
    t8 = const 2 : i64
    t9 = le(t7, t8)
    t10 = load %o[i0, i1, i2, i3] : f64
    t11 = load %s[i0, i1, i2] : f64
    t12 = load %g[i0, i1, i2, i3] : f64
    t13 = parameter 1 : f64
    t14 = mul(t4, t4)
    t15 = const 1.0 : f64
    t16 = sub(t15, t14)
    t17 = mul(t13, t16)
    query t0, key t1, value t2
    score t6
    mask t9
    output t10, logsumexp t11, gradient t12
    slope t17
    bias t13 at [i1, 0, r0]
  }
  return (%dq, %dk, %dv, %db)
}
"""
GRADIENT_OPERANDS = """query t0, key t1, value t2
    score t6
    mask t9
    output t10"""
TEXTS = (CAUSAL, CAPPED, DROPPED, GRADIENT)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + seed)).to(dtype)


def checked(text: str) -> Graph:
    graph = parse_graph(text)
    verify_graph(graph)
    return graph


def causal(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = q.double(), k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    scores = (q @ k.mT * 0.25).masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1, keepdim=True)


@pytest.mark.parametrize("length", [5, 1, 0])
def test_rows_weigh_the_keys_that_count(length: int) -> None:
    inputs = (drawn(2, 4, length, 8), drawn(2, 2, length, 8, seed=1), drawn(2, 2, length, 6, seed=2))
    found = interpret_graph(checked(CAUSAL), list(inputs))
    for ours, exact in zip(found, causal(*inputs), strict=True):
        torch.testing.assert_close(ours, exact.float())


def test_a_score_is_what_its_body_makes_of_it() -> None:
    q, k, v = drawn(3, 4, 8), drawn(3, 5, 8, seed=1), drawn(3, 5, 8, seed=2)
    slopes = torch.tensor([0.5, 0.25, 0.125])
    halves = [one.bfloat16() for one in (q, k, v)]
    (found,) = interpret_graph(checked(CAPPED), [*halves, slopes])
    wide = [one.double() for one in halves]
    distance = torch.arange(5)[None, :] - torch.arange(4)[:, None]
    scores = (wide[0] @ wide[1].mT).tanh() * 2 + distance * slopes[:, None, None].double()
    torch.testing.assert_close(found, (scores.softmax(-1) @ wide[2]).bfloat16())


@pytest.mark.parametrize(
    ("old", "new"),
    [("t8 = le(t6, t7)", "t8 = gt(t6, t7)"), ("r0: s0", "r0: 0")],
    ids=["all hidden", "no keys"],
)
def test_a_row_of_which_nothing_is_left_is_zeros(old: str, new: str) -> None:
    text = CAUSAL.replace(old, new)
    inputs = [drawn(2, 4, 3, 8), drawn(2, 2, 3, 8), drawn(2, 2, 3, 6)]
    output, logsumexp = interpret_graph(checked(text), inputs)
    assert isinstance(output, Tensor) and isinstance(logsumexp, Tensor)
    assert output[:, :, -1].eq(0).all() and logsumexp[:, :, -1].eq(0).all()
    assert output.isfinite().all() and logsumexp.isfinite().all()


def test_the_gradient_is_that_of_autograd() -> None:
    shapes = ((2, 4, 3, 6), (2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6), (4, 1, 5))
    g, *operands = (drawn(*shape, dtype=torch.float64, seed=n) for n, shape in enumerate(shapes))
    operands[-1][0, 0, 2] = float("-inf")
    found = interpret_graph(checked(GRADIENT), [g, *operands])
    q, k, v, b = leaves = [one.clone().requires_grad_() for one in operands]
    hidden = torch.arange(5)[None, :] - torch.arange(3)[:, None] > 2
    scores = (q @ k.repeat_interleave(2, 1).mT).tanh() + b
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    expected = torch.autograd.grad(weights @ v.repeat_interleave(2, 1), leaves, g)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_gradient_drops_the_weights_that_were_dropped() -> None:
    torch.manual_seed(0)
    q = drawn(1, 2, 6, 8)
    *found, size = interpret_graph(checked(DROPPED), [q])
    output, dq, dk, dv = tensors_of(found)
    again, *_ = tensors_of(interpret_graph(checked(DROPPED), [q])[:-1])
    assert size == 6 and not output.equal(again)
    plain = checked(DROPPED.replace("dropout 0.5", ""))
    assert not tensors_of(interpret_graph(plain, [q])[:-1])[0].equal(output)
    # the weights by which the values count are those of the output
    g = torch.arange(8.0).expand(1, 2, 6, 8)
    torch.testing.assert_close((dv * q).sum(), (output * g).sum())
    assert dq.isfinite().all() and dk.isfinite().all()


def test_the_text_is_canonical() -> None:
    for text in TEXTS:
        graph = parse_graph(text)
        assert parse_graph(format_graph(graph)) == graph
        assert format_graph(parse_graph(format_graph(graph))) == format_graph(graph)
    assert "loc(" not in format_graph(parse_graph(CAUSAL), origins=False)


def test_what_they_read_and_define() -> None:
    node, _, gradient = parse_graph(DROPPED).nodes
    assert isinstance(node, Attention) and list_bodies(node) == node.weights.bodies
    assert list_read_buffers(node) == ("q",) and [b.name for b in list_defined_buffers(node)] == [
        "o",
        "s",
        "seed",
        "unused",
        "mask",
    ]
    assert [s.name for s in list_bound_symbols(node)] == ["s1"]
    assert isinstance(gradient, AttentionGradient) and list_bodies(gradient) == gradient.bodies
    assert list_read_buffers(gradient) == ("q", "o", "s", "g", "seed", "unused")
    for one in (node, gradient):
        assert list_overwritten_buffers(one) == () and list_memory_aliases(one) == ()
    layouts = find_layouts(parse_graph(DROPPED))
    assert all(isinstance(layouts[name], Fixed) for name in ("o", "s", "seed", "g", "dq"))
    assert all(isinstance(one, Buffer | SymbolOutput | None) for one in node.outputs)


@pytest.mark.parametrize(
    ("text", "code", "old", "new"),
    [
        (CAUSAL, "attention-axes", ", r1: 8]", ", r1: 8, r2: 8]"),
        (CAUSAL, "axes", "r1: 8]", "r1: 8, r1: 8]"),
        (CAUSAL, "range-extents", "i3: 6 |", "i3: 7 |"),
        (CAUSAL, "symbol-declared", "load %q[i0, i1, i2, r1]", "load %q[i0, i1, r0, r1]"),
        (CAUSAL, "symbol-declared", "load %k[i0, i1 // 2, r0, r1]", "load %k[i0, i1 // 2, r0, i3]"),
        (CAUSAL, "symbol-declared", "t6 = index [r0]", "t6 = index [r1]"),
        (CAUSAL, "parameter", "parameter 0", "parameter 1"),
        (CAUSAL, "parameter", "query t0", "query t5"),
        (CAUSAL, "attention-types", "attention f32", "attention f64"),
        (CAUSAL, "attention-types", "score t5", "score t7"),
        (CAUSAL, "attention-types", "%o: f32", "%o: i32"),
        (CAUSAL, "mask-type", "mask t8", "mask t7"),
        (CAUSAL, "attention-logsumexp", "at [i0, i1, i2, 0]", "at [i0, i1, i2]"),
        (CAUSAL, "attention-logsumexp", "%s: f32[2, 4, s0, 1]", "_"),
        (CAUSAL, "attention-logsumexp", "%s: f32", "%s: f64"),
        (CAUSAL, "symbol-declared", "at [i0, i1, i2, 0]", "at [i0, i1, i2, r0]"),
        (CAUSAL, "defined-before-use", "load %v[", "load %w["),
        (CAPPED, "attention-state", "r1: 8] {", "r1: 8] dropout 0.1 {"),
        (DROPPED, "attention-state", "flash (_, _, size", "flash (_, size"),
        (
            DROPPED,
            "attention-state",
            "flash (_, _, size s1 in [0, inf], _,",
            "flash (_, size s1 in [0, inf], _, _,",
        ),
        (DROPPED, "attention-state", "%seed: i64[2]", "_"),
        (DROPPED, "attention-state", "dropout 0.5", "dropout 1.5"),
        (DROPPED, "defined-before-use", "%seed, %unused, none", "%seed, %gone, none"),
        (
            GRADIENT,
            "attention-operands",
            GRADIENT_OPERANDS,
            f"t18 = neg(t0)\n    {GRADIENT_OPERANDS.replace('t0', 't18')}",
        ),
        (GRADIENT, "attention-operands", "%dk: f64[2, 2, 5, 8]", "%dk: f64[2, 4, 5, 8]"),
        (GRADIENT, "attention-operands", "%dv: f64", "%dv: f32"),
        (GRADIENT, "attention-operands", "%db: f64[4, 1, 5]) =", "_) ="),
        (GRADIENT, "index-rank", "bias t13 at [i1, 0, r0]", "bias t13 at [i1, r0]"),
        (GRADIENT, "symbol-declared", "bias t13 at [i1, 0, r0]", "bias t13 at [i1, 0, i3]"),
    ],
)
def test_what_is_no_attention_is_refused(text: str, code: str, old: str, new: str) -> None:
    broken = text.replace(old, new)
    assert broken != text
    with pytest.raises(VerifyError) as caught:
        verify_graph(parse_graph(broken))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "old", "new", "reason"),
    [
        (CAUSAL, "    query t0, key t1, value t2\n", "", "query"),
        (CAUSAL, ", %s: f32[2, 4, s0, 1])", ")", "a logsumexp"),
        (GRADIENT, "(%dq: f64[2, 4, 3, 8]", "(_", "gradients are those of"),
        (GRADIENT, "    slope t17\n", "", "slope"),
    ],
)
def test_what_is_left_out_does_not_parse(text: str, old: str, new: str, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        parse_graph(text.replace(old, new))


def test_an_epilogue_knows_ranges_and_the_weighted_sum() -> None:
    case = next(one for one in ATTENTION_CASES if one.name == "rounding-epilogue")
    graph = checked(case.text)
    node = graph.nodes[0]
    assert (
        isinstance(node, Attention) and node.epilogue is not None and list_bodies(node)[-1] is node.epilogue
    )
    assert match_library_attention(node, {b.name: b for b in graph.inputs if isinstance(b, Buffer)}) is None
    for old, new, code in (
        ("cast(t58) : bf16", "cast(t58) : f16", "attention-types"),
        ("index [i3]", "index [r0]", "symbol-declared"),
        ("t58 = mul(t3, t57)", "t55 = parameter 1 : f32 t58 = mul(t55, t57)", "parameter"),
    ):
        assert old in case.text
        with pytest.raises(VerifyError) as caught:
            verify_graph(parse_graph(case.text.replace(old, new)))
        assert caught.value.code == code


def tensors(
    *, heads: int = 2, bias: tuple[int, ...] | None = None, dtype: DType = DType.BF16
) -> dict[str, Buffer]:
    shapes = {
        "q": (2, 4, 3, 8),
        "k": (2, heads, 5, 8),
        "v": (2, heads, 5, 6),
        "o": (2, 4, 3, 6),
        "s": (2, 4, 32),
    }
    shapes |= {"g": (2, 4, 3, 6), "dq": (2, 4, 3, 8), "dk": (2, heads, 5, 8), "dv": (2, heads, 5, 6)}
    shapes |= {} if bias is None else {"b": bias, "db": bias}
    wide = dtype.compute
    return {name: named(name, shape, wide if name == "s" else dtype) for name, shape in shapes.items()}


def named(name: str, shape: tuple[int, ...], dtype: DType) -> Buffer:
    sizes = tuple(as_expr(size) for size in shape)
    return Buffer(name=name, dtype=dtype, shape=sizes, strides=make_contiguous_strides(sizes))


@pytest.mark.parametrize("causal", ["", "first", "last"])
@pytest.mark.parametrize("bias", [None, (2, 1, 3, 5), (3, 1), (1, 4, 1, 5)])
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_the_form_of_libraries_is_read_back(causal: Causal, bias: tuple[int, ...] | None, heads: int) -> None:
    known = tensors(heads=heads, bias=bias)
    parts = LibraryAttention(
        query=known["q"], key=known["k"], value=known["v"], bias=known.get("b"), scale=0.3, causal=causal
    )
    assert parts.why_malformed() is None and not parts.has_default_scale
    node = make_attention(parts, known["o"], known["s"])
    assert match_library_attention(node, known) == (parts, None)
    saved = GradientOperands(gradient=known["g"], output=known["o"], logsumexp=known["s"])
    gradients = (known["dq"], known["dk"], known["dv"])
    gradient = make_attention_gradient(parts, saved, gradients, known.get("db"))
    assert match_library_attention(gradient, known) == (parts, saved)
    given = tuple(known[name] for name in ("q", "k", "v", "g", *(("b",) if bias else ())))
    graph = Graph(name="g", inputs=given, constants=(), nodes=(node, gradient), outputs=(Ref("dq"),))
    verify_graph(graph)
    assert parse_graph(format_graph(graph)) == graph


def test_other_forms_are_not_read_back() -> None:
    for text in (CAPPED, GRADIENT, CAUSAL.replace("t8 = le(t6, t7)", "t8 = lt(t6, t7)")):
        graph = parse_graph(text)
        buffers = {b.name: b for b in graph.inputs if isinstance(b, Buffer)}
        buffers |= {b.name: b for node in graph.nodes for b in list_defined_buffers(node)}
        (first, *_) = graph.nodes
        assert isinstance(first, Attention) and match_library_attention(first, buffers) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"q": (2, 4, 24)}, "four dimensions"),
        ({"k": (1, 2, 5, 8)}, "batches"),
        ({"k": (2, 2, 4, 8)}, "batches"),
        ({"k": (2, 3, 5, 8), "v": (2, 3, 5, 6)}, "as many heads each"),
        ({"b": (4, 3, 5)}, "two dimensions or four"),
        ({"b": (2, 2, 3, 5)}, "broadcast"),
    ],
)
def test_what_libraries_do_not_take_has_a_reason(changed: dict[str, tuple[int, ...]], reason: str) -> None:
    known = {**tensors(), **{name: named(name, shape, DType.BF16) for name, shape in changed.items()}}
    parts = LibraryAttention(
        query=known["q"], key=known["k"], value=known["v"], bias=known.get("b"), scale=1.0
    )
    found = parts.why_malformed()
    assert found is not None and reason in found


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_cases_of_the_kit_mean_what_autograd_says(case: AttentionCase) -> None:
    graph = checked(case.text)
    given = dict(zip([b.name for b in graph.inputs if isinstance(b, Buffer)], case.make(), strict=True))
    leaves = {n: one.double().requires_grad_(bool(case.slope) and n != "g") for n, one in given.items()}
    q, k, v = (leaves[name] for name in "qkv")
    k, v = (one.repeat_interleave(4 // case.shared, 1) for one in (k, v))
    scores = q @ k.mT
    rows, keys = torch.arange(case.rows)[:, None], torch.arange(case.keys)[None, :]
    scores = scores.tanh() * 2 if "tanh" in case.score else scores * 0.25
    if "div(" in case.score:
        scores = scores + (keys - rows) / torch.arange(1, 5)[:, None, None]
    scores = scores + leaves["b"] if "b" in leaves else scores
    if case.mask:
        bound = next((n for text, n in (("[i2 + 2]", 2), ("[i2 - 2]", -2)) if text in case.mask), 0)
        seen = keys <= rows + bound
        scores = scores.masked_fill(
            ~(seen & (keys + 2 > rows) if "gt(" in case.mask else seen), float("-inf")
        )
    nothing = (scores == float("-inf")).all(-1, keepdim=True)
    weights = scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
    output = weights @ v
    if case.epilogue:
        output = output * torch.arange(case.columns)
        output = output.tanh() if "tanh" in case.epilogue else output
    found = interpret_graph(graph, list(given.values()))
    logsumexp = scores.masked_fill(nothing, 0).logsumexp(-1).masked_fill(nothing[..., 0], 0)
    expected = [output, logsumexp]
    if case.slope:
        operands = [leaves[name] for name in ("q", "k", "v", "b") if name in leaves]
        expected += torch.autograd.grad(output, operands, leaves["g"])
    for ours, theirs in zip(found, expected, strict=True):
        assert isinstance(ours, Tensor)
        loose = 0.03 if ours.dtype.itemsize == 2 else None
        torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=loose, atol=loose)


def test_the_kit_tells_who_weighs_otherwise() -> None:
    assert {r.status for r in check_attention(interpret_graph)} == {"passed"}

    def shifted(graph: Graph, inputs: Sequence[Tensor]) -> list[object]:
        return [one + 0.1 if isinstance(one, Tensor) else one for one in interpret_graph(graph, inputs)]

    def refusing(graph: Graph, inputs: Sequence[Tensor]) -> list[object]:
        raise VerifyError("no", "nothing is computed")

    assert {r.status for r in check_attention(shifted)} == {"failed"}
    assert {r.status for r in check_attention(refusing)} == {"refused"}
    wrong = check_attention(
        lambda graph, inputs: [one.double() for one in tensors_of(interpret_graph(graph, inputs))]
    )
    assert [r.case for r in wrong if r.status == "passed"] == ["f64"]


# Lists of blocks of two rows and two keys of a causal mask, and sums as logarithms to the base 2.
LISTED = """graph @listed {
  input %q: f32[2, 4, 8]
  input %k: f32[2, 4, 8]
  input %n: i32[2]
  input %x: i32[2, 2]
  (%o: f32[2, 4, 8], %s: f32[2, 4]) = attention f32 [i0: 2, i1: 4, i2: 8 | r0: 4, r1: 8] {
    t0 = load %q[i0, i1, r1] : f32
    t1 = load %k[i0, r0, r1] : f32
    t2 = load %k[i0, r0, i2] : f32
    t3 = parameter 0 : f32
    t4 = index [r0 + 1]
    t5 = index [i1]
    t6 = le(t4, t5)
    t7 = load %n[i1 // 2] : i32
    t8 = load %x[i1 // 2, r0 // 2] : i32
    query t0, key t1, value t2
    score t3
    mask t6
    blocks 2 by 2 (keys (t7, t8))
    logarithms binary
    logsumexp at [i0, i1]
  }
  return (%o, %s)
}
"""


def test_lists_of_blocks_change_nothing_and_rows_without_keys_are_minus_infinity() -> None:
    """The mask is the definition: lists are a promise."""
    graph = parse_graph(LISTED)
    verify_graph(graph)
    assert format_graph(graph) == LISTED
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 4, 8, generator=generator) for _ in range(2))
    lists = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)
    output, logs = interpret_graph(graph, [q, k, *lists])
    keeps = torch.arange(4) + 1 <= torch.arange(4)[:, None]
    scores = (q @ k.mT).masked_fill(~keeps, float("-inf"))
    torch.testing.assert_close(output, scores.softmax(-1).nan_to_num() @ k)
    torch.testing.assert_close(logs, scores.exp().sum(-1).log2())
    assert isinstance(logs, Tensor) and bool((logs[:, 0] == float("-inf")).all())


def test_a_gradient_starts_from_what_all_weights_of_a_row_pass_on() -> None:
    """`inner` in the place of the output: the gradient of a logarithm is a part of it."""
    text = """graph @g {
  input %q: f64[3, 4]
  input %k: f64[5, 4]
  input %n: f64[3]
  input %s: f64[3]
  input %g: f64[3, 4]
  (%a: f64[3, 4], %b: f64[5, 4], %c: f64[5, 4], _) = attention_gradient f64 [i0: 3, i1: 4 | r0: 5, r1: 4] {
    t0 = load %q[i0, r1] : f64
    t1 = load %k[r0, r1] : f64
    t2 = load %k[r0, i1] : f64
    t3 = parameter 0 : f64
    t4 = load %n[i0] : f64
    t5 = load %s[i0] : f64
    t6 = load %g[i0, i1] : f64
    t7 = parameter 1 : f64
    query t0, key t1, value t2
    score t3
    logarithms binary
    inner t4, logsumexp t5, gradient t6
    slope t7
  }
  return (%a, %b, %c)
}
"""
    graph = parse_graph(text)
    verify_graph(graph)
    assert format_graph(graph) == text
    generator = torch.Generator().manual_seed(0)
    q, k, g = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (3, 5, 3))
    of_logs = torch.randn(3, generator=generator, dtype=torch.float64)
    query, key, value = (x.clone().requires_grad_() for x in (q, k, k))
    scores = query @ key.mT
    logs, output = scores.exp().sum(-1).log2(), scores.softmax(-1) @ value
    wanted = torch.autograd.grad((output, logs), (query, key, value), (g, of_logs))
    inner = (output * g).sum(-1) - of_logs / torch.tensor(2.0, dtype=torch.float64).log()
    found = interpret_graph(graph, [q, k, inner.detach(), logs.detach(), g])
    torch.testing.assert_close(found, list(wanted))
