"""Checks that torch writes into exported graphs: those that hold for certain are left out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coilwork_frontend.exported_program import flatten_program


class Converting(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32).exp() + x.to(torch.float64).sum()


def count_checks(program: torch.export.ExportedProgram, retarget: str = "") -> tuple[int, int]:
    """How many checks of metadata there are, before and afterwards."""
    flat = flatten_program(program, retarget)
    graphs = program.graph, flat.gm.graph
    before, after = (sum("metadata" in str(node.target) for node in graph.nodes) for graph in graphs)
    return before, after


@pytest.mark.parametrize("retarget", ["", "cuda"])
def test_known_element_types_and_devices_are_not_checked(retarget: str) -> None:
    before, after = count_checks(torch.export.export(Converting(), (torch.zeros(3),)), retarget)
    assert before > 0 and after == 0
