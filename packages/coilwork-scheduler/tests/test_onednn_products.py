"""Products in `f32` on CPUs become calls of oneDNN where these gain, convolutions of one tap among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import pytest
import torch
from declared import ScheduleFields, schedule
from torch import Tensor

from coilwork_ir.kernels import Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.target import TARGETS
from coilwork_scheduler import ScheduleOptions

CPU = "x86-64-avx512"
ONEDNN = "mkldnn._linear_pointwise.default"
LINEAR = """graph @g {
  input %x: f32[128, 96]
  input %w: f32[128, 96]
  input %b: f32[128]
  %t: f32[96, 128]{1, 96} = view %w offset `0`
  extern "aten.addmm.default" (%b, %x, %t) aten implements "product" defines (%y: f32[128, 128]) out \
"aten.addmm.out" ("out") fresh
  return (%y)
}
"""
WEIGHT_GRADIENT = """graph @g {
  input %g: f32[ROWS, WIDTH]
  input %x: f32[ROWS, COLUMNS]
  %t: f32[WIDTH, ROWS]{1, WIDTH} = view %g offset `0`
  extern "aten.mm.default" (%t, %x) aten implements "product" defines (%y: f32[WIDTH, COLUMNS]) out \
"aten.mm.out" ("out") fresh
  return (%y)
}
"""
CONVOLUTION = """graph @g {
  input %x: f32[2, 64, 14, 14]{12544, 1, 896, 64}
  input %w: f32[128, 64, 1, 1]
  extern "aten.convolution.default" (%x, %w, none, [STEP, STEP], [0, 0], [1, 1], False, [0, 0], 1) aten \
implements "convolution" defines (%y: f32[2, 128, SIDE, SIDE]{LAYOUT}) fresh
  return (%y)
}
"""
GRADIENTS = """graph @g {
  input %g: f32[2, 256, 16, 16]{65536, 1, 4096, 256}
  input %x: f32[2, 128, 16, 16]{32768, 1, 2048, 128}
  input %w: f32[256, 128, 1, 1]
  extern "aten.convolution_backward.default" (%g, %x, %w, [256], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, \
[True, True, True]) aten implements "convolution gradients" defines (%dx: f32[2, 128, 16, 16]{32768, 1, \
2048, 128}, %dw: f32[256, 128, 1, 1], %db: f32[256]) tuple fresh
  return (%dx, %dw, %db)
}
"""


def scheduled(text: str, **options: Unpack[ScheduleFields]) -> tuple[Schedule, list[str]]:
    """The schedule of the graph in `text`, and the operators that it calls."""
    options.setdefault("calls_onednn", True)
    chosen = ScheduleOptions(**options)
    made = schedule(parse_graph(text), TARGETS[CPU], chosen)
    verify_schedule(made)
    return made, [step.target for step in made.steps if isinstance(step, Extern)]


def drawn(shape: Sequence[int], *, is_last: bool = False) -> Tensor:
    value = torch.randn(*shape)
    return value.contiguous(memory_format=torch.channels_last) if is_last else value


def assert_equal(text: str, made: Schedule, inputs: Mapping[str, Tensor]) -> None:
    values = list(inputs.values())
    for found, expected in zip(
        interpret_schedule(made, values), interpret_graph(parse_graph(text), values), strict=True
    ):
        assert isinstance(found, Tensor) and isinstance(expected, Tensor)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_a_linear_layer_is_a_call_of_onednn() -> None:
    made, calls = scheduled(LINEAR)
    assert calls == [ONEDNN]
    inputs = {"x": drawn((128, 96)), "w": drawn((128, 96)), "b": drawn((128,))}
    assert_equal(LINEAR, made, inputs)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_result_by_columns_is_copied(has_bias: bool) -> None:
    """Without a bias the transpose is multiplied instead, and nothing is copied."""
    text = LINEAR.replace("%x: f32[128, 96]", "%x: f32[160, 256]").replace(
        "%w: f32[128, 96]", "%w: f32[128, 256]"
    )
    text = text.replace("[96, 128]{1, 96}", "[256, 128]{1, 256}")
    text = text.replace("%y: f32[128, 128]", "%y: f32[160, 128]{1, 160}")
    inputs = {"x": drawn((160, 256)), "w": drawn((128, 256)), "b": drawn((128,))}
    if not has_bias:
        text = (
            text.replace("(%b, %x, %t)", "(%x, %t)")
            .replace("addmm", "mm")
            .replace("  input %b: f32[128]\n", "")
        )
        del inputs["b"]
    made, calls = scheduled(text)
    assert calls == [ONEDNN] and len(made.kernels) == int(has_bias)
    assert_equal(text, made, inputs)


@pytest.mark.parametrize(
    "options", [{"calls_onednn": False}, {"numerics": "eager"}, {"batch_invariant": True}]
)
def test_a_captured_call_stays_where_bits_are_those_of_eager(options: ScheduleFields) -> None:
    assert ONEDNN not in scheduled(LINEAR, **options)[1]


def test_few_terms_and_other_types_stay() -> None:
    few = LINEAR.replace("[128", "[32").replace("128]", "32]").replace("96, 128", "96, 32")
    assert scheduled(few)[1] == ["aten.addmm.default"]
    assert scheduled(LINEAR.replace("f32", "f64"))[1] == ["aten.addmm.default"]


def test_products_of_open_sizes_stay() -> None:
    text = LINEAR.replace("graph @g {", "graph @g {\n  symbol n in [2, inf]")
    text = text.replace("%x: f32[128, 96]", "%x: f32[n, 96]").replace("f32[128, 128]", "f32[n, 128]")
    assert scheduled(text)[1] == ["aten.addmm.default"]


@pytest.mark.parametrize(("length", "target"), [(96, "aten.addmm.default"), (256, ONEDNN)])
def test_short_sums_do_not_repay_a_large_result_of_its_own(length: int, target: str) -> None:
    text = LINEAR.replace("%x: f32[128, 96]", f"%x: f32[20000, {length}]")
    text = text.replace("%w: f32[128, 96]", f"%w: f32[128, {length}]").replace("{1, 96}", f"{{1, {length}}}")
    text = text.replace("[96, 128]", f"[{length}, 128]").replace("%y: f32[128, 128]", "%y: f32[20000, 128]")
    assert scheduled(text)[1] == [target]


@pytest.mark.parametrize(
    ("rows", "width", "columns", "targets", "kernels"),
    [
        # the narrower factor is copied, and the result behind the call
        (1024, 512, 128, [ONEDNN], 1),
        # a copy of the left factor is smaller than one of the result
        (512, 512, 2048, [ONEDNN], 0),
        # the sums are too short for a copy of either
        (1024, 64, 64, ["aten.mm.default"], 0),
    ],
)
def test_what_a_copy_of_an_operand_costs_decides(
    rows: int, width: int, columns: int, targets: list[str], kernels: int
) -> None:
    text = (
        WEIGHT_GRADIENT.replace("ROWS", str(rows))
        .replace("COLUMNS", str(columns))
        .replace("WIDTH", str(width))
    )
    made, calls = scheduled(text)
    assert calls == targets and len(made.kernels) == kernels
    assert_equal(text, made, {"g": drawn((rows, width)), "x": drawn((rows, columns))})


def test_a_convolution_of_one_tap_is_a_product_of_pixels() -> None:
    text = CONVOLUTION.replace("STEP", "1").replace("SIDE", "14").replace("LAYOUT", "25088, 1, 1792, 128")
    made, calls = scheduled(text, convolution_layout="captured")
    assert calls == [ONEDNN]
    assert_equal(text, made, {"x": drawn((2, 64, 14, 14), is_last=True), "w": drawn((128, 64, 1, 1))})


@pytest.mark.parametrize(
    ("step", "side", "layout"), [(2, 7, "6272, 1, 896, 128"), (1, 14, "25088, 196, 14, 1")]
)
def test_windows_with_steps_and_other_layouts_stay(step: int, side: int, layout: str) -> None:
    text = CONVOLUTION.replace("STEP", str(step)).replace("SIDE", str(side)).replace("LAYOUT", layout)
    assert scheduled(text, convolution_layout="captured")[1] == ["aten.convolution.default"]


def test_gradients_of_one_tap_are_products_and_a_sum() -> None:
    made, calls = scheduled(GRADIENTS, convolution_layout="captured")
    assert calls == [ONEDNN, ONEDNN, "aten.sum.dim_IntList"]
    inputs = {
        "g": drawn((2, 256, 16, 16), is_last=True),
        "x": drawn((2, 128, 16, 16), is_last=True),
        "w": drawn((256, 128, 1, 1)),
    }
    assert_equal(GRADIENTS, made, inputs)
