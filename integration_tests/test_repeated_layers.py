"""Deep models and stacks of random layers give the same loops and programs with and without `repeat`."""

from __future__ import annotations

import pytest
import torch

from benchmarks.compile_stages import Captured
from integration_tests.repeated_layers import capture_model, capture_stack, compare, format_renamed


def check(name: str, graphs: list[Captured]) -> int:
    """How many of the graphs had layers copied; none of them differs."""
    rows = [compare(name, graph, 1, None) for graph in graphs]
    assert [row.text for row in rows if row.kinds] == []
    return sum(row.is_copied for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_layers_of_gpt2_are_copied_right(training: bool) -> None:
    graphs = capture_model("gpt2", training=training, dtype=torch.float32, dynamic=False)
    assert check("gpt2", graphs) == len(graphs) == (2 if training else 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 35])
def test_layers_of_a_random_stack_are_copied_right(seed: int) -> None:
    graphs = capture_stack(seed, training=True, dtype=torch.bfloat16, dynamic=False)
    assert check(f"stack {seed}", graphs) > 0


def test_a_program_that_reads_another_buffer_differs() -> None:
    text = "launch @k (%x, %y) loc(a.py:1)\nlaunch @k (%y, {})"
    assert format_renamed(text.format("%x")) == format_renamed(text.format("%x").replace("%y", "%b"))
    assert format_renamed(text.format("%x")) != format_renamed(text.format("%y"))
