"""Functions of emitted code that no hand-written program reaches on this machine."""

from __future__ import annotations

import pytest
import torch

from coilwork_wrapper import LayoutError, layouts


def test_memory_that_starts_between_two_elements_is_refused() -> None:
    with pytest.raises(
        LayoutError, match=r"misaligned.*byte 4 of its storage cannot be read as torch\.float64"
    ):
        layouts.reinterpret_dtype(torch.arange(4.0)[1:], (1,), (1,), torch.float64, 0)


def test_views_count_from_the_first_element() -> None:
    base = torch.arange(12.0)
    assert layouts.reinterpret(base[2:], (2, 2), (1, 4), 1).tolist() == [[3.0, 7.0], [4.0, 8.0]]
    bits = layouts.reinterpret_dtype(base[2:], (1,), (1,), torch.int32, 1)
    assert bits.data_ptr() == base.data_ptr() + 12 and bits.dtype is torch.int32


def test_allocation_on_other_devices() -> None:
    made = layouts.empty_strided((2, 3), (1, 2), torch.float16, "meta")
    assert (made.device.type, made.stride(), made.dtype) == ("meta", (1, 2), torch.float16)
    made = layouts.empty_strided_cpu((2, 3), (1, 2), torch.float16)
    assert (made.device.type, made.stride(), made.dtype) == ("cpu", (1, 2), torch.float16)


def test_a_device_without_a_number_is_the_first_one() -> None:
    with pytest.raises(LayoutError, match="device cpu, expected cuda"):
        layouts.check_layout(torch.ones(1), "x", torch.float32, "cuda", (1,), (1,))
