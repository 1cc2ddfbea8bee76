"""Every rule of the kernel and schedule verifiers is triggered by a text that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ir_cases import COPY, UPDATE, broken_cases

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.index import symbol
from coilwork_ir.kernels import Store
from coilwork_ir.kernels.text import parse_kernel, parse_schedule
from coilwork_ir.kernels.verify import (
    KERNEL_RULES,
    SCHEDULE_RULES,
    find_levels,
    verify_kernel,
    verify_schedule,
)
from coilwork_ir.loops.verify import RULES as LOOP_RULES
from coilwork_ir.scalar import const

KERNELS = broken_cases("broken_kernels.txt")
SCHEDULES = broken_cases("broken_schedules.txt")

SOFTMAX = """
kernel @softmax fast {
  range x0: `4` parallel
  range r0: `8` reduction
  arg in0: f32 in span `32`
  arg out0: f32 out span `32`
  aliasing (out0 of in0)
  body {
    t0 = load %in0[8*x0 + r0] : f32
    t1 = reduce max 0 (t0) over (r0)
    t2 = sub(t0, t1)
    t3 = exp(t2)
    t4 = reduce sum 0 (t3) over (r0)
    t5 = div(t3, t4)
    store %out0[8*x0 + r0] = t5
  }
}
"""


@pytest.mark.parametrize("text", [COPY, UPDATE, SOFTMAX])
def test_good_kernels_pass(text: str) -> None:
    verify_kernel(parse_kernel(text))


@pytest.mark.parametrize("code, text", KERNELS, ids=[code for code, _ in KERNELS])
def test_a_broken_kernel_is_refused_by_its_rule(code: str, text: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_kernel(parse_kernel(text))
    assert caught.value.code == code
    assert caught.value.what == KERNEL_RULES[code].sentence
    assert caught.value.reason and caught.value.remedy and caught.value.node


@pytest.mark.parametrize("code, text", SCHEDULES, ids=[code for code, _ in SCHEDULES])
def test_a_broken_schedule_is_refused_by_its_rule(code: str, text: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_schedule(parse_schedule(text))
    assert caught.value.code == code
    assert caught.value.what == SCHEDULE_RULES[code].sentence


def code_of(store: Store) -> str:
    with pytest.raises(VerifyError) as caught:
        verify_kernel(replace(parse_kernel(COPY), stores=(store,)))
    return caught.value.code


def test_rules_that_text_cannot_break() -> None:
    (store,) = parse_kernel(COPY).stores
    assert code_of(replace(store, index=symbol("n9"))) == "symbol-declared"
    assert code_of(replace(store, index=symbol("n0", lo=7))) == "symbol-declared"
    assert code_of(replace(store, indirect=(const(1.0, DType.F32),))) == "index-type"
    assert code_of(replace(store, mask=const(1, DType.I64))) == "mask-type"


def test_a_load_has_one_flat_offset() -> None:
    text = COPY.replace("load %in0[x0]", "load %in0[x0, x0]")
    with pytest.raises(VerifyError) as caught:
        verify_kernel(parse_kernel(text))
    assert caught.value.code == "index-rank"


def test_every_rule_has_a_test() -> None:
    # the state of an attention has no words in a kernel: test_cores
    elsewhere = {"symbol-declared", "index-type", "mask-type", "index-rank", "attention-state"}
    assert {code for code, _ in KERNELS} | elsewhere == set(KERNEL_RULES)
    own = set(SCHEDULE_RULES) - set(LOOP_RULES)
    assert own <= {code for code, _ in SCHEDULES}


def test_levels_are_the_ranges_that_values_vary_along() -> None:
    kernel = parse_kernel(SOFTMAX)
    parallel, reduced = (r.symbol for r in kernel.ranges)
    level = find_levels(kernel)
    quotient = kernel.stores[0].value
    assert level[quotient] == {parallel, reduced}
    assert level[quotient.operands[1]] == {parallel}


def test_a_good_schedule_with_a_takeover_passes() -> None:
    text = f"""
schedule @s {{
  symbol n in [2, inf]
  input %x: f32[n]
  {COPY}
  {UPDATE}
  call @copy (%x, %y) sizes [n] defines (%y: f32[n])
  call @update (%x1) sizes [n] into (%x1 of %x) defines (%x1: f32[n])
  %v: f32[n - 1] = view %y offset `1`
  return (%v, %x1)
}}
"""
    schedule = parse_schedule(text)
    verify_schedule(schedule)
    assert schedule.buffers[0].shape == schedule.symbols
