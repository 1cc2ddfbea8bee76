"""Collectives over NCCL, streams of the program's own and operators that keep operands, beside eager, over
two GPUs.
"""

from __future__ import annotations

import pytest
import torch

from integration_tests.flight_runs import programs_on, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def test_programs_that_communicate_are_eager_on_two_gpus() -> None:
    """One process per GPU serves all of them."""
    outcomes = list(run(device="cuda", drivers=("native", "python"), limit_s=400.0))
    assert [outcome for outcome in outcomes if outcome[2]] == []
    assert len(outcomes) == 2 * len(programs_on("cuda"))
