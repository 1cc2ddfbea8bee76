"""What computes attention: calls of the kernels that it was captured for, loops where no library takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from declared import declare
from torch import Tensor

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.conformance import check_attention, format_failures
from coilwork_ir.kernels import Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern, Graph
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.target import TARGETS
from coilwork_scheduler import ScheduleError, ScheduleOptions, schedule

LIBRARY = """graph @library {
  input %q: T[2, 4, M, 16]DEVICE
  input %k: T[2, 2, N, 16]DEVICE
  input %v: T[2, 2, N, 16]DEVICE
  input %b: T[2, 1, M, N]DEVICE
  (%o: T[2, 4, M, 16]DEVICE, %s: f32[2, 4, PADDED]DEVICE) = attention f32 \
[i0: 2, i1: 4, i2: M, i3: 16 | r0: N, r1: 16] FORM STATE {
    t0 = load %q[i0, i1, i2, r1] : T
    t1 = load %k[i0, i1 // 2, r0, r1] : T
    t2 = load %v[i0, i1 // 2, r0, i3] : T
    t3 = parameter 0 : f32
    t4 = const SCALE : f32
    t5 = mul(t3, t4)
    BIAS
    t9 = index [r0]
    t10 = index [i2]
    t11 = le(t9, t10)
    query t0, key t1, value t2
    score SCORE
    mask t11
    logsumexp at [INDEX]
  }
  return (%o, %s)
}
"""


def library_text(
    form: str,
    *,
    m: int = 32,
    n: int = 32,
    bias: bool = False,
    scale: float = 0.25,
    gpu: bool = True,
    at: str = "",
    columns: int = 16,
    batch: int = 2,
) -> Graph:
    states = {
        "plain": "",
        "flash": "(_, _, _, _, %seed: u64[2] @cuda:0, %unused: u64[] @cuda:0, _)",
        "efficient": "(%seed: i64[] @cuda:0, %offset: i64[] @cuda:0)",
        "cudnn": "(_, _, _, _, %seed: i64[] @cuda:0, %offset: i64[] @cuda:0, _)",
    }
    index = "i0, i1, i2, 0" if form == "cudnn" else "i0, i1, i2"
    text = LIBRARY.replace("STATE", states[form]).replace("FORM", "" if form == "plain" else form)
    text = text.replace("PADDED", "M, 1" if form == "cudnn" else "M").replace("INDEX", index)
    added = "t6 = load %b[i0, 0, i2, r0] : T\n    t7 = cast(t6) : f32\n    t8 = add(t5, t7)"
    if not gpu:
        added = "t6 = load %b[i0, 0, i2, r0] : T\n    t8 = add(t5, t6)"
    text = text.replace("BIAS", added if bias else "").replace("SCORE", "t8" if bias else "t5")
    text = text.replace("SCALE", repr(scale)).replace("DEVICE", " @cuda:0" if gpu else "")
    text = text.replace("[i2]", at or "[i2]", 1)
    text = text.replace(": T", ": bf16" if gpu else ": f32")
    text = text.replace("M", str(m)).replace("N", str(n))
    text = text.replace(", 16]", f", {columns}]").replace(": 16", f": {columns}")
    text = text.replace("[2, ", f"[{batch}, ").replace("i0: 2", f"i0: {batch}")
    graph = parse_graph(text)
    verify_graph(graph)
    return graph


def calls(made: Schedule) -> list[Extern]:
    return [step for step in made.steps if isinstance(step, Extern)]


Q, K, V, B = (Ref(name) for name in "qkvb")


@pytest.mark.parametrize(
    ("graph", "target", "name", "args", "kwargs"),
    [
        (library_text("flash"), "sm_90", "flash_attention", (Q, K, V, 0.0, True, False), (("scale", 0.25),)),
        (
            library_text("efficient", bias=True),
            "sm_90",
            "efficient_attention",
            (Q, K, V, B, True, 0.0, True),
            (),
        ),
        (
            library_text("cudnn", scale=0.5),
            "sm_90",
            "cudnn_attention",
            (Q, K, V, None, True, 0.0, True, False),
            (("scale", 0.5),),
        ),
        (
            library_text("plain", gpu=False, bias=True),
            "x86-64-avx512",
            "flash_attention_for_cpu",
            (Q, K, V, 0.0, True),
            (("attn_mask", B),),
        ),
    ],
    ids=["flash", "efficient", "cudnn", "cpu"],
)
def test_attention_is_the_call_whose_state_it_has(
    graph: Graph, target: str, name: str, args: tuple[object, ...], kwargs: tuple[object, ...]
) -> None:
    made = schedule(graph, TARGETS[target])
    verify_schedule(made)
    (call,) = calls(made)
    assert call.target == f"aten._scaled_dot_product_{name}.default" and call.random
    assert call.args == args and call.kwargs == kwargs
    (decision,) = (d for d in made.decisions if d.rule == "attention")
    assert not decision.accepted and dict(decision.numbers)["call_us"] > 0


@pytest.mark.parametrize(
    ("graph", "target"),
    [
        (library_text("plain", gpu=False, at="[i2 + 1]"), "x86-64-avx512"),
        (library_text("plain", gpu=True), "sm_90"),
        (library_text("plain", gpu=True, bias=True), "sm_90"),
    ],
    ids=["a window", "no kernel of a GPU", "no kernel of a GPU, with a bias"],
)
def test_what_no_library_takes_is_written_out(graph: Graph, target: str) -> None:
    assert_written_out(graph, target)


@pytest.mark.parametrize(
    "graph",
    [
        library_text("flash", bias=True),
        library_text("flash", n=40),
        library_text("efficient", at="[i2 + 1]"),
    ],
    ids=["a bias for flash attention", "the other end", "a window"],
)
def test_what_nothing_computes_is_an_error(graph: Graph) -> None:
    with pytest.raises(ScheduleError, match="nothing computes %o on sm_90") as caught:
        schedule(graph, TARGETS["sm_90"])
    assert caught.value.code == "no-attention"


CAPPED = """graph @capped {
  input %q: bf16[3, 4, 8]
  input %k: bf16[3, 5, 8]
  input %v: bf16[3, 5, 6]
  input %slopes: f32[3]
  (%o: bf16[3, 4, 6], %s: f32[3, 7, 2]) = attention f32 [i0: 3, i1: 4, i2: 6 | r0: 5, r1: 8] {
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
    t12 = index [r0]
    t13 = index [i1]
    t14 = lt(t12, t13)
    query t0, key t1, value t2
    score t11
    mask t14
    logsumexp at [i0, i1, 1]
  }
  %total: f32[3, 4] = pointwise [i0: 3, i1: 4] {
    t0 = load %s[i0, i1, 1] : f32
    yield t0
  }
  return (%o, %total)
}
"""
GRADIENT = """graph @gradient {
  input %g: f32[2, 4, 3, 6]
  input %q: f32[2, 4, 3, 8]
  input %k: f32[2, HEADS, 5, 8]
  input %v: f32[2, HEADS, 5, 6]
  input %b: f32[4, 1, 5]
  input %o: f32[2, 4, 3, 6]
  input %s: f32[2, 4, 3]
  (%dq: f32[2, 4, 3, 8], %dk: f32[2, HEADS, 5, 8], %dv: f32[2, HEADS, 5, 6], %db: f32[4, 1, 5]) \
= attention_gradient f32 [i0: 2, i1: 4, i2: 3, i3: 6 | r0: 5, r1: 8] {
    t0 = load %q[i0, i1, i2, r1] : f32
    t1 = load %k[i0, SHARED, r0, r1] : f32
    t2 = load %v[i0, SHARED, r0, i3] : f32
    t3 = parameter 0 : f32
    t4 = tanh(t3)
    t5 = load %b[i1, 0, r0] : f32
    t6 = add(t4, t5)
    t7 = index [-i2 + r0]
    t8 = const 2 : i64
    t9 = le(t7, t8)
    t10 = load %o[i0, i1, i2, i3] : f32
    t11 = load %s[i0, i1, i2] : f32
    t12 = load %g[i0, i1, i2, i3] : f32
    t13 = parameter 1 : f32
    t14 = mul(t4, t4)
    t15 = const 1.0 : f32
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


def drawn(graph: Graph) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    types = {"bf16": torch.bfloat16, "f32": torch.float32}
    made = []
    for entry in graph.inputs:
        assert isinstance(entry, Buffer)
        shape = [int(str(size)) for size in entry.shape]
        made.append(torch.randn(shape, generator=generator).to(types[entry.dtype.text]))
    return made


def assert_written_out(graph: Graph, target: str) -> None:
    verify_graph(graph)
    seen: list[Graph] = []
    made = schedule(graph, TARGETS[target], ScheduleOptions(), observe=lambda _, after: seen.append(after))
    for after in seen:
        verify_graph(after)
    verify_schedule(made)
    assert calls(made) == [] and any(d.rule == "attention" and d.accepted for d in made.decisions)
    inputs = drawn(graph)
    assert_close(interpret_schedule(made, inputs), interpret_graph(graph, inputs))


def assert_close(found: Sequence[object], expected: Sequence[object]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
@pytest.mark.parametrize(
    "text",
    [
        CAPPED,
        GRADIENT.replace("HEADS", "4").replace("SHARED", "i1"),
        GRADIENT.replace("HEADS", "2").replace("SHARED", "i1 // 2"),
        GRADIENT.replace("HEADS", "1").replace("SHARED", "0"),
    ],
    ids=["capped", "gradient", "gradient of shared heads", "gradient of one head"],
)
def test_scores_of_any_form_are_written_out(text: str, target: str) -> None:
    assert_written_out(parse_graph(text), target)


@pytest.mark.parametrize(
    ("m", "heads", "options", "called"),
    [
        (49, 4096, ScheduleOptions(), 0),
        (49, 4096, ScheduleOptions(batch_invariant=True), 1),
        (49, 4096, ScheduleOptions(numerics="eager"), 1),
        (49, 4096, ScheduleOptions(numerics="strict"), 1),
        (1024, 64, ScheduleOptions(), 1),
        (1, 4096, ScheduleOptions(), 1),
    ],
)
def test_many_short_attentions_are_kernels_of_ours(
    m: int, heads: int, options: ScheduleOptions, called: int
) -> None:
    """A library's tiles are large, and its state is for a gradient that nobody computes here."""
    graph = library_text("cudnn", m=m, n=m, columns=64, batch=heads)
    short = replace(graph, outputs=graph.outputs[:1])
    made = schedule(short, declare(TARGETS["sm_90"], cores=frozenset({"attention"})), options)
    assert len(calls(made)) == called
    kept = schedule(graph, declare(TARGETS["sm_90"], cores=frozenset({"attention"})), options)
    assert len(calls(kept)) == 1, "a state that is read is the library's"


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
def test_the_conformance_kit_passes(target: str) -> None:
    """On a GPU all is written out: kernels take their own states. On a CPU torch's kernel takes most."""

    called: list[int] = []

    def compute(graph: Graph, inputs: Sequence[Tensor]) -> Sequence[object]:
        made = schedule(graph, TARGETS[target])
        verify_schedule(made)
        called.append(len(calls(made)))
        return interpret_schedule(made, list(inputs))

    results = check_attention(compute)
    assert format_failures(results) == ""
    assert {result.status for result in results} == {"passed"}
    assert (sum(called) == 0) == (target == "sm_90") and 0 in called
