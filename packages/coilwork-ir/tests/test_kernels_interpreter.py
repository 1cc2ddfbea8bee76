"""Kernels and schedules, as text, against the torch code they stand for."""

from __future__ import annotations

import pytest
import torch
from ir_cases import COPY, UPDATE
from tensor_results import tensors_of
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import InterpretError, VerifyError
from coilwork_ir.index import symbol
from coilwork_ir.kernels.interpreter import interpret_kernel, interpret_schedule
from coilwork_ir.kernels.text import parse_kernel, parse_schedule
from coilwork_ir.kernels.verify import verify_kernel, verify_schedule
from coilwork_ir.scalar import load, sort

GENERATOR = torch.Generator().manual_seed(11)


def run(text: str, args: dict[str, torch.Tensor], **sizes: int) -> None:
    kernel = parse_kernel(text)
    verify_kernel(kernel)
    interpret_kernel(kernel, args, sizes)


def test_a_softmax_of_several_passes() -> None:
    text = """
kernel @softmax fast {
  size n0 in [1, inf]
  range x0: `3` parallel
  range r0: `n0` reduction
  arg in0: f32 in span `3*n0`
  arg out0: f32 out span `3*n0`
  arg out1: f32 out span `3`
  body {
    t0 = load %in0[n0*x0 + r0] : f32
    t1 = reduce max 0 (t0) over (r0)
    t2 = sub(t0, t1)
    t3 = exp(t2)
    t4 = reduce sum 0 (t3) over (r0)
    t5 = div(t3, t4)
    store %out0[n0*x0 + r0] = t5
    store %out1[x0] = t4
  }
}
"""
    x = torch.randn(3, 7, generator=GENERATOR)
    args = {"in0": x.flatten(), "out0": torch.zeros(21), "out1": torch.zeros(3)}
    run(text, args, n0=7)
    torch.testing.assert_close(args["out0"].reshape(3, 7), torch.softmax(x, -1))
    torch.testing.assert_close(args["out1"], torch.exp(x - x.amax(-1, keepdim=True)).sum(-1))


def test_a_masked_reduction_along_two_ranges_in_row_major_order() -> None:
    text = """
kernel @pick fast {
  range x0: `2` parallel
  range r0: `3` reduction
  range r1: `4` reduction
  arg in0: f32 in span `24`
  arg out0: i64 out span `2`
  body {
    t0 = load %in0[12*x0 + 4*r0 + r1] : f32
    t1 = index [r1]
    t2 = const 2 : i64
    t3 = lt(t1, t2)
    t4 = reduce argmax 0 (t0, t3) over (r0, r1)
    store %out0[x0] = t4
  }
}
"""
    x = torch.randn(2, 3, 4, generator=GENERATOR)
    args = {"in0": x.flatten(), "out0": torch.zeros(2, dtype=torch.int64)}
    run(text, args)
    masked = x.clone()
    masked[..., 2:] = -100.0
    assert torch.equal(args["out0"], masked.reshape(2, 12).argmax(-1))


def test_a_scan_feeding_a_reduction() -> None:
    text = """
kernel @scan fast {
  range x0: `2` parallel
  range r0: `5` reduction
  arg in0: f32 in span `10`
  arg out0: f32 out span `10`
  arg out1: f32 out span `2`
  body {
    t0 = load %in0[5*x0 + r0] : f32
    t1 = scan sum 0 (t0) along r0 reverse
    t2 = reduce max 0 (t1) over (r0)
    store %out0[5*x0 + r0] = t1
    store %out1[x0] = t2
  }
}
"""
    x = torch.randn(2, 5, generator=GENERATOR)
    args = {"in0": x.flatten(), "out0": torch.zeros(10), "out1": torch.zeros(2)}
    run(text, args)
    expected = x.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(args["out0"].reshape(2, 5), expected)
    torch.testing.assert_close(args["out1"], expected.amax(1))


def test_topk_of_more_elements_than_a_row_has_is_refused() -> None:
    r = symbol("r0", extent=4)
    row = load("in0", [r], DType.F32)
    assert sort(row, r, topk=4) is not sort(row, r)
    with pytest.raises(VerifyError, match="sort-count"):
        sort(row, r, topk=5)


def test_a_sort_between_what_makes_the_row_and_what_follows() -> None:
    text = """
kernel @sort fast {
  range x0: `2` parallel
  range r0: `5` reduction
  arg in0: f32 in span `10`
  arg out0: f32 out span `10`
  arg out1: i64 out span `6`
  arg out2: f32 out span `2`
  body {
    t0 = load %in0[5*x0 + r0] : f32
    t1 = neg(t0)
    t2 = sort 0 (t1) along r0 descending
    t3 = sort 1 (t1) along r0 descending
    t4 = index [r0]
    t5 = const 3 : i64
    t6 = lt(t4, t5)
    t7 = reduce sum 0 (t2, t6) over (r0)
    store %out0[5*x0 + r0] = t2
    store %out1[3*x0 + r0] = t3 mask t6
    store %out2[x0] = t7
  }
}
"""
    x = torch.tensor([[1.0, -0.0, float("nan"), 0.0, 1.0], [3.0, 2.0, 2.0, -float("inf"), 2.0]])
    args = {"in0": x.flatten(), "out0": torch.zeros(10), "out1": torch.zeros(6, dtype=torch.int64)}
    args["out2"] = torch.zeros(2)
    run(text, args)
    values, positions = torch.sort(-x, dim=1, descending=True, stable=True)
    torch.testing.assert_close(args["out0"].reshape(2, 5), values, equal_nan=True)
    assert torch.signbit(args["out0"][1]) == torch.signbit(values[0, 1])
    assert torch.equal(args["out1"].reshape(2, 3), positions[:, :3])
    torch.testing.assert_close(args["out2"], values[:, :3].sum(1), equal_nan=True)


def test_loads_see_memory_as_it_was_on_entry() -> None:
    text = UPDATE.replace("load %io0[x0]", "load %io0[n0 - x0 - 1]")
    line = torch.arange(5.0)
    run(text, {"io0": line}, n0=5)
    assert line.tolist() == [8.0, 6.0, 4.0, 2.0, 0.0]


def test_a_combining_store_counts_every_parallel_point() -> None:
    text = """
kernel @count fast {
  range x0: `6` parallel
  arg io0: i32 inout span `1`
  body {
    t0 = const 1 : i32
    store %io0[0] add = t0
  }
}
"""
    line = torch.tensor([4], dtype=torch.int32)
    run(text, {"io0": line})
    assert line.item() == 10


def test_no_points_write_nothing_and_check_nothing() -> None:
    check = 't1 = const False : bool\n      check t1 RuntimeError "no"\n      store'
    text = COPY.replace("store", check)
    run(text, {"in0": torch.zeros(0), "out0": torch.zeros(0)}, n0=0)
    with pytest.raises(RuntimeError, match="no"):
        run(text, {"in0": torch.zeros(1), "out0": torch.zeros(1)}, n0=1)


@pytest.mark.parametrize(
    "args, sizes, code",
    [
        ({"in0": torch.zeros(4)}, {"n0": 4}, "argument"),
        ({"in0": torch.zeros(2, 2), "out0": torch.zeros(4)}, {"n0": 4}, "argument"),
        ({"in0": torch.zeros(4, dtype=torch.int32), "out0": torch.zeros(4)}, {"n0": 4}, "argument"),
        ({"in0": torch.zeros(8)[::2], "out0": torch.zeros(4)}, {"n0": 4}, "argument"),
        ({"in0": torch.zeros(4), "out0": torch.zeros(4)}, {}, "size"),
        ({"in0": torch.zeros(4), "out0": torch.zeros(4)}, [4, 4], "size"),
        ({"in0": torch.zeros(3), "out0": torch.zeros(4)}, {"n0": 4}, "out-of-bounds"),
        ({"in0": torch.zeros(4), "out0": torch.zeros(3)}, {"n0": 4}, "out-of-bounds"),
    ],
)
def test_wrong_arguments_are_named(
    args: dict[str, Tensor], sizes: dict[str, int] | list[int], code: str
) -> None:
    with pytest.raises(InterpretError) as caught:
        interpret_kernel(parse_kernel(COPY), args, sizes)
    assert caught.value.code == code


def test_a_schedule_runs_its_steps() -> None:
    text = f"""
schedule @s {{
  symbol n in [2, inf]
  input %x: f32[n]
  constant "c" %c: f32[3]
  {COPY}
  {UPDATE}
  call @copy (%x, %y) sizes [n] defines (%y: f32[n])
  call @update (%x1) sizes [n] into (%x1 of %x) defines (%x1: f32[n])
  %v: f32[n - 1] = view %y offset `1`
  extern "aten.neg.default" (%v) aten defines (%w: f32[n - 1])
  call @update (%y) sizes [n] into (%y1 of %y) defines (%y1: f32[n])
  assert `n` lt `9` "too long"
  return (%w, %y1, %c)
}}
"""
    schedule = parse_schedule(text)
    verify_schedule(schedule)
    x, c = torch.randn(5, generator=GENERATOR), torch.zeros(3)
    before = x.clone()
    w, y1, same = tensors_of(interpret_schedule(schedule, [x], {"c": c}))
    assert torch.equal(x, 2 * before)
    assert torch.equal(w, -before[1:]) and torch.equal(y1, 2 * before)
    assert torch.equal(same, c)
    with pytest.raises(RuntimeError, match="too long"):
        interpret_schedule(schedule, [torch.zeros(9)], {"c": c})
