"""Calls whose shapes torch's fake tensors get wrong: elements chosen by a mask of another shape, and sums
over all dimensions, as in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork_frontend.capture.operator_fixes import broadcast_masked_select

FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "function": torch.masked_select,
    "method": lambda x, mask: x.masked_select(mask),
    "by name": lambda x, mask: torch.masked_select(mask=mask, input=x),
}
OPERANDS: dict[str, tuple[Tensor, Tensor]] = {
    "a row by a matrix": (torch.arange(4.0), torch.arange(20).view(5, 4) % 7 > 0),
    "a matrix by a row": (torch.arange(20.0).view(4, 5).t(), torch.arange(4) > 1),
    "a column by a row": (torch.arange(5.0)[:, None], torch.arange(4)[None] > 1),
    "alike": (torch.arange(4.0), torch.arange(4) > 1),
}


class Broadcasting:
    """A back end that does nothing else, and counts broadcasts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        broadcast_masked_select(gm)
        gm.graph.lint()
        self.count = sum(node.target is torch.broadcast_tensors for node in gm.graph.nodes)
        call: Callable[..., Any] = gm.forward
        return call


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shapes", OPERANDS)
def test_as_eager(form: str, shapes: str) -> None:
    backend = Broadcasting()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = torch.compile(FORMS[form], backend=backend, dynamic=True)(*OPERANDS[shapes])
    torch.testing.assert_close(found, FORMS[form](*OPERANDS[shapes]))
    assert backend.count == (shapes != "alike")


SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "nansum": lambda x: torch.nansum(x, dim=[]) * 2,
    "nansum with dimensions kept": lambda x: x.nansum([], keepdim=True) * 2,
    "nanmean": lambda x: torch.nanmean(x, ()) * 2,
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_no_listed_dimensions(name: str) -> None:
    ours = torch.compile(SUMS[name], backend="coilwork", options={"strict": True})
    results = []
    for call in (SUMS[name], ours):
        x = torch.tensor([[1.0, float("nan")], [3.0, 4.0]]).requires_grad_()
        found = call(x)
        found.sum().backward()
        results.append((found.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])
