"""What inputs of a program can be."""

from __future__ import annotations

import torch

from coilwork_cpp_wrapper.torch_compat import size_in


def test_integers_are_themselves() -> None:
    assert size_in(7) == 7


def test_the_length_of_a_jagged_dimension_is_no_number() -> None:
    jagged = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)], layout=torch.jagged)
    length: object = jagged.shape[1]
    assert isinstance(length, torch.SymInt)
    assert size_in(length) == 0
