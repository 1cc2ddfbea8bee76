"""The tables of stages are in an order that has reasons."""

from __future__ import annotations

from typing import Any

import pytest

from coilwork.stages import STAGES
from coilwork_ir.passes import PassTable
from coilwork_lowering.joint.partition import JOINT_PASSES, NEEDED
from coilwork_lowering.pipeline import LOWERING_STAGES
from coilwork_scheduler.make_program import PROGRAM_STAGES


@pytest.mark.parametrize(
    "table",
    [STAGES, LOWERING_STAGES, PROGRAM_STAGES, JOINT_PASSES],
    ids=["all", "lowering", "program", "joint"],
)
def test_every_order_has_a_reason(table: PassTable[Any, Any]) -> None:
    assert table.violations() == ()


def test_the_steps_that_results_need_are_steps() -> None:
    assert JOINT_PASSES.select(*NEEDED).names == NEEDED
