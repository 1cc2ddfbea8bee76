"""Calls of an exported graph for a GPU that is not here: attention is the kernel that torch would choose."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coilwork_frontend.exported_program import flatten_program


class Attention(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.mark.parametrize(
    ("target", "length", "head", "dtype", "kernel"),
    [
        ("sm_90", 256, 64, torch.bfloat16, "cudnn"),
        ("sm_90", 100, 64, torch.bfloat16, "flash"),
        ("sm_90", 128, 192, torch.float16, "flash"),
        ("sm_80", 256, 64, torch.bfloat16, "flash"),
        ("sm_90", 256, 64, torch.float32, "efficient"),
    ],
)
def test_attention_is_what_torch_would_choose(
    target: str, length: int, head: int, dtype: torch.dtype, kernel: str
) -> None:
    x = torch.zeros(1, 2, length, head, dtype=dtype)
    flat = flatten_program(torch.export.export(Attention(), (x,)), "cuda", target=target)
    called = {str(node.target) for node in flat.gm.graph.nodes if "attention" in str(node.target)}
    assert called == {f"aten._scaled_dot_product_{kernel}_attention.default"}


def test_attention_over_an_open_length_is_for_any_length() -> None:
    x = torch.zeros(1, 2, 256, 64, dtype=torch.bfloat16)
    shapes = {"x": {2: torch.export.Dim("length", min=2, max=1024)}}
    program = torch.export.export(Attention(), (x,), dynamic_shapes=shapes)
    flat = flatten_program(program, "cuda", target="sm_90")
    assert "_scaled_dot_product_flash_attention" in str(flat.gm.graph)
