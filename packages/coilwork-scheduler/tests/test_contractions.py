"""Which matrix products become kernels, and what shares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import pytest
import torch
from declared import ScheduleFields, schedule
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Decision, KernelCall, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import find_contraction, find_contractions, iterate_postorder
from coilwork_ir.target import TARGETS
from coilwork_scheduler import ScheduleOptions

HEAD = "graph @g {\n"


def product_text(
    output: str, left: str, right: str, shapes: str, dtype: str = "f32", added: str = "", at: str = ""
) -> str:
    """A product of matrices, or of batches: `shapes` are the sizes of the batch, rows, columns and terms."""
    *batch, rows, columns, terms = shapes.split()
    ranges = [f"i{k}" for k in range(len(batch) + 2)]
    before, row, column = ranges[:-2], ranges[-2], ranges[-1]
    domain = ", ".join(f"{name}: {size}" for name, size in zip(ranges, (*batch, rows, columns), strict=True))
    lines = [
        (
            f"%{output}: {dtype}[{', '.join((*batch, rows, columns))}] = contract f32 [{domain} | r0: "
            f"{terms}] {{"
        ),
        f"  t0 = load %{left}[{', '.join((*before, row, 'r0'))}] : {dtype}",
        f"  t1 = load %{right}[{', '.join((*before, 'r0', column))}] : {dtype}",
        "  t2 = parameter 0 : f32",
    ]
    value = "t2"
    if added:
        lines += [f"  t3 = load %{added}[{at}] : {dtype}", "  t4 = cast(t3) : f32"]
        lines += [f"  t5 = add(t2, {'t4' if dtype != 'f32' else 't3'})"]
        value = "t5"
    lines += [f"  t6 = cast({value}) : {dtype}", "  multiply t0, t1", "  yield t6", "}"]
    if dtype == "f32":
        # casts to a value's own type are the value
        lines = [line for line in lines if "cast(" not in line]
        lines[-2] = f"  yield {value}"
    return "".join(f"  {line}\n" for line in lines)


INT8 = """  input %x: bf16[M, K]
  input %w: i8[N, K]
  input %s: bf16[N]
  %wide: bf16[N, K] = pointwise [i0: N, i1: K] {
    t0 = load %w[i0, i1] : i8
    t1 = cast(t0) : bf16
    t2 = cast(t1) : f32
    t3 = load %s[i0] : bf16
    t4 = cast(t3) : f32
    t5 = mul(t2, t4)
    t6 = cast(t5) : bf16
    yield t6
  }
  %turned: bf16[K, N]{1, K} = view %wide offset `0`
PRODUCT  return (%y)
}
""".replace("PRODUCT", product_text("y", "x", "turned", "M N K", "bf16"))
LINEAR = """  input %x: f32[6, 10]
  input %w: f32[7, 10]
  input %b: f32[7]
  %turned: f32[10, 7]{1, 10} = view %w offset `0`
PRODUCT  %z: f32[2, 3, 7] = pointwise [i0: 2, i1: 3, i2: 7] {
    t0 = load %y[3*i0 + i1, i2] : f32
    t1 = exp(t0)
    yield t1
  }
""".replace("PRODUCT", product_text("y", "x", "turned", "6 7 10", added="b", at="i1"))


def int8_graph(m: int, n: int, k: int) -> str:
    sizes = {"M": m, "N": n, "K": k}
    return HEAD + "".join(str(sizes.get(c, c)) for c in INT8)


def scheduled(
    text: str, inputs: Sequence[Tensor] = (), *, target: str = "sm_90", **options: Unpack[ScheduleFields]
) -> Schedule:
    """The schedule of the graph, which gives what the graph gives for `inputs`."""
    graph = parse_graph(text)
    verify_graph(graph)
    made = schedule(graph, TARGETS[target], ScheduleOptions(**options))
    verify_schedule(made)
    if inputs:
        pairs = zip(interpret_schedule(made, inputs), interpret_graph(graph, inputs), strict=True)
        for found, expected in pairs:
            assert isinstance(found, Tensor) and isinstance(expected, Tensor)
            close = 1e-5 if expected.dtype is torch.float32 else 2e-2
            assert (found - expected).abs().max() <= close * expected.abs().max()
    return made


def calls(made: Schedule) -> list[str]:
    return [step.target for step in made.steps if isinstance(step, Extern)]


def strategies(made: Schedule) -> list[str]:
    """What kernels are to those who write them: contractions, other reductions, or neither."""
    return [
        "contracted"
        if find_contraction(list_kernel_roots(kernel)) is not None
        else "reduced"
        if any(r.kind == "reduction" for r in kernel.ranges)
        else "none"
        for kernel in made.kernels
    ]


def decision(made: Schedule, rule: str = "contraction") -> Decision:
    (found,) = [d for d in made.decisions if d.rule == rule]
    return found


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype is torch.int8:
        return torch.randint(-100, 100, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype) / 8


def int8_inputs(m: int, n: int, k: int) -> list[Tensor]:
    half = torch.bfloat16
    return [drawn(m, k, dtype=half), drawn(n, k, dtype=torch.int8), drawn(n, dtype=half)]


def test_few_rows_against_a_weight_of_8_bits_are_one_kernel() -> None:
    made = scheduled(int8_graph(16, 11008, 4096))
    assert calls(made) == [] and strategies(made) == ["contracted"]
    (step,) = made.steps
    assert isinstance(step, KernelCall) and step.args == ("x", "w", "s", "y")
    chosen = dict(decision(made).numbers)
    assert decision(made).accepted and chosen["kernel_us"] < chosen["call_us"] / 3


@pytest.mark.parametrize(
    ("target", "m", "options"),
    [
        ("sm_90", 16, {"contractions": "aten"}),
        ("sm_90", 16, {"numerics": "strict"}),
        ("sm_90", 128, {}),
        ("gfx942", 16, {}),
        ("x86-64-avx512", 16, {}),
    ],
)
def test_other_products_are_calls(target: str, m: int, options: ScheduleFields) -> None:
    made = scheduled(int8_graph(m, 11008, 4096), target=target, **options)
    assert calls(made) == ["aten.mm.default"]
    if "contractions" not in options:
        assert not decision(made).accepted


def logits_graph(m: int, n: int, k: int, layout: str = "") -> str:
    """Rows times the transpose of a weight in bf16."""
    weight = layout or f"{{1, {k}}}"
    return (
        f"graph @logits {{\n  input %x: bf16[{m}, {k}]\n  input %w: bf16[{k}, {n}]{weight}\n"
        f"{product_text('y', 'x', 'w', f'{m} {n} {k}', 'bf16')}  return (%y)\n}}"
    )


@pytest.mark.parametrize(("columns", "rows"), [(50257, 8192), (50257, 1024), (30522, 4096), (50260, 8192)])
def test_rows_that_are_no_whole_vectors_are_stored_by_a_kernel(columns: int, rows: int) -> None:
    made = scheduled(logits_graph(rows, columns, 768))
    assert calls(made) == [] and strategies(made) == ["contracted"]
    assert decision(made).accepted and "no whole vectors" in decision(made).reason
    numbers = dict(decision(made).numbers)
    assert numbers["kernel_us"] <= 0.8 * numbers["call_us"]


@pytest.mark.parametrize(
    ("rows", "columns", "inner", "layout", "options"),
    [
        (8192, 50264, 768, "", {}),
        (16, 50257, 768, "", {}),
        (8192, 50257, 770, "", {}),
        (8192, 50257, 768, "{50257, 1}", {}),
        (8192, 50257, 768, "", {"numerics": "strict"}),
    ],
    ids=["whole vectors", "bound by the weight", "odd sums", "odd rows of the weight", "strict"],
)
def test_products_that_a_kernel_gains_nothing_by(
    rows: int, columns: int, inner: int, layout: str, options: ScheduleFields
) -> None:
    made = scheduled(logits_graph(rows, columns, inner, layout), **options)
    assert calls(made) == ["aten.mm.default"] and not decision(made).accepted


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("m", [1, 3])
def test_what_widens_a_weight_is_part_of_the_product(m: int, numerics: Numerics, target: str) -> None:
    made = scheduled(
        int8_graph(m, 12, 40),
        int8_inputs(m, 12, 40),
        target=target,
        numerics=numerics,
        contractions="generated",
    )
    assert calls(made) == [] and len(made.kernels) == 1
    contracts = m > 1 and target == "sm_90"
    assert strategies(made) == ["contracted" if contracts else "reduced"]


def test_a_scale_is_behind_the_sum_if_roundings_may_be_left_out() -> None:
    inputs = int8_inputs(4, 12, 40)
    expected: tuple[tuple[Numerics, bool], ...] = (("fast", True), ("eager", False))
    for numerics, behind in expected:
        made = scheduled(int8_graph(4, 12, 40), inputs, numerics=numerics, contractions="generated")
        assert any(d.rule == "scale-sums" for d in made.decisions) is behind


def test_few_strips_are_cut_in_pieces_of_equal_length() -> None:
    made = scheduled(int8_graph(4, 512, 4096), int8_inputs(4, 512, 4096), contractions="generated")
    assert strategies(made) == ["contracted", "reduced"]
    first, second = (kernel.ranges[-1].symbol.extent for kernel in made.kernels)
    assert repr(first) == "512" and repr(second) == "8"


def test_one_row_is_a_reduction_like_others() -> None:
    made = scheduled(int8_graph(1, 512, 4096), int8_inputs(1, 512, 4096))
    assert decision(made).accepted and strategies(made) == ["reduced"]


@pytest.mark.parametrize("rows", [1, 4])
def test_weights_of_8_bits_are_converted_once(rows: int) -> None:
    """To f32; only a matrix unit takes them in 16 bits."""
    (kernel,) = scheduled(
        int8_graph(rows, 12, 40), int8_inputs(rows, 12, 40), contractions="generated"
    ).kernels
    values = tuple(store.value for store in kernel.stores)
    read = [
        node for node in iterate_postorder(values) if node.operands and node.operands[0].dtype is DType.I8
    ]
    found = find_contraction(values)
    assert (found is None) is (rows == 1)
    assert [node.dtype for node in read] == [DType.F32 if found is None else found.right.dtype]
    assert found is None or {factor.dtype for factor in found.operands} == {DType.BF16}


def test_a_bias_and_what_follows_share_the_kernel() -> None:
    inputs = [drawn(6, 10), drawn(7, 10), drawn(7)]
    made = scheduled(HEAD + LINEAR + "  return (%z)\n}\n", inputs, contractions="generated")
    assert strategies(made) == ["contracted"] and calls(made) == []
    assert made.kernels[0].aliasing == ()
    both = scheduled(HEAD + LINEAR + "  return (%z, %y)\n}\n", inputs, contractions="generated")
    assert strategies(both) == ["contracted"] and len(both.kernels[0].stores) == 2


def test_a_gate_and_what_it_gates_are_one_kernel() -> None:
    inputs = [drawn(6, 10), drawn(10, 7), drawn(10, 7)]
    text = HEAD + "  input %x: f32[6, 10]\n  input %w: f32[10, 7]\n  input %v: f32[10, 7]\n"
    text += product_text("y", "x", "w", "6 7 10") + product_text("z", "x", "v", "6 7 10")
    text += """  %o: f32[6, 7] = pointwise [i0: 6, i1: 7] {
    t0 = load %y[i0, i1] : f32
    t1 = tanh(t0)
    t2 = load %z[i0, i1] : f32
    t3 = mul(t1, t2)
    yield t3
  }
  return (%o)
}
"""
    made = scheduled(text, inputs, contractions="generated")
    assert strategies(made) == ["contracted"]
    assert len(find_contractions(list_kernel_roots(made.kernels[0]))) == 2


def test_products_that_nothing_joins_are_kernels_of_their_own() -> None:
    text = HEAD + "  input %x: f32[6, 10]\n  input %w: f32[10, 7]\n  input %v: f32[10, 7]\n"
    text += product_text("y", "x", "w", "6 7 10") + product_text("z", "x", "v", "6 7 10")
    made = scheduled(text + "  return (%y, %z)\n}\n", contractions="generated")
    # both are calls of one kernel
    assert strategies(made) == ["contracted"] and len(made.steps) == 2


def test_a_reduction_of_the_result_is_a_kernel_of_its_own() -> None:
    rows = """  (%m: f32[2, 3]) = reduce max [i0: 2, i1: 3 | r0: 7] {
    t0 = load %z[i0, i1, r0] : f32
    yield t0
  }
  return (%m, %z)
}
"""
    inputs = [drawn(6, 10), drawn(7, 10), drawn(7)]
    made = scheduled(HEAD + LINEAR + rows, inputs, contractions="generated")
    assert sorted(strategies(made)) == ["contracted", "reduced"]


def test_what_costs_much_for_each_element_of_a_factor_is_computed_once() -> None:
    text = """graph @g {
  input %x: f32[512, 64]
  input %v: f32[512, 64]
  input %w: f32[64, 4096]
  %a: f32[512, 64] = pointwise [i0: 512, i1: 64] {
    t0 = load %x[i0, i1] : f32
    t1 = load %v[i0, i1] : f32
    t2 = erf(t0)
    t3 = mul(t2, t1)
    yield t3
  }
PRODUCT  return (%y)
}
""".replace("PRODUCT", product_text("y", "a", "w", "512 4096 64"))
    assert strategies(scheduled(text, contractions="generated")) == ["none", "contracted"]


def test_batches_and_operands_in_any_layout() -> None:
    text = """graph @g {
  input %x: f16[3, 5, 8]
  input %w: f16[3, 6, 8]
  input %b: f16[5, 1]
  %xv: f16[3, 5, 4]{40, 8, 2} = view %x offset `1`
  %wv: f16[3, 4, 6]{48, 1, 8} = view %w offset `2`
  %bv: f16[3, 5, 6]{0, 1, 0} = view %b offset `0`
PRODUCT  return (%y)
}
""".replace("PRODUCT", product_text("y", "xv", "wv", "3 5 6 4", "f16", added="bv", at="i0, i1, i2"))
    half = torch.float16
    inputs = [drawn(3, 5, 8, dtype=half), drawn(3, 6, 8, dtype=half), drawn(5, 1, dtype=half)]
    made = scheduled(text, inputs, contractions="generated")
    assert strategies(made) == ["contracted"]


def test_sums_weighted_by_other_factors_are_calls() -> None:
    weighted = LINEAR.replace("add(t2, t3)", "add(t7, t3)").replace(
        "    t3 =", "    t8 = const 2.0 : f32\n    t7 = mul(t2, t8)\n    t3 ="
    )
    assert weighted != LINEAR
    made = scheduled(
        HEAD + weighted + "  return (%z)\n}\n",
        [drawn(6, 10), drawn(7, 10), drawn(7)],
        contractions="generated",
    )
    assert calls(made) == ["aten.addmm.default"]


@pytest.mark.parametrize(("most", "expected"), [("100000", ["aten.mm.default"]), ("64", [])])
def test_few_rows_are_few_whatever_they_are(most: str, expected: list[str]) -> None:
    text = int8_graph(16, 11008, 4096).replace("[16, ", "[s0, ").replace("i0: 16", "i0: s0")
    text = text.replace(HEAD, f"{HEAD}  symbol s0 in [2, {most}]\n")
    assert calls(scheduled(text, size_hints=(("s0", 16),))) == expected


def test_sizes_may_be_unknown() -> None:
    text = """graph @g {
  symbol s0 in [2, 100]
  input %x: f32[s0, 8]
  input %w: f32[8, 5]
PRODUCT  return (%y)
}
""".replace("PRODUCT", product_text("y", "x", "w", "s0 5 8"))
    made = scheduled(text, [drawn(7, 8), drawn(8, 5)], contractions="generated")
    assert strategies(made) == ["contracted"]
