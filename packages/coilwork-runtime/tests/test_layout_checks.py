"""Tensors as generated modules handle them."""

from __future__ import annotations

import pytest
import torch

from coilwork_runtime import LayoutError
from coilwork_runtime.generated import (
    check_aligned_layout,
    check_layout,
    check_rank,
    empty_pool,
    empty_strided,
    empty_strided_cpu,
    ensure_aligned_layout,
    ensure_layout,
    pool_view,
    reinterpret,
    reinterpret_dtype,
)

F32 = torch.float32


def check(value: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    check_layout(value, "x", F32, "cpu", size, stride)


def test_the_compiled_layout_passes() -> None:
    check(torch.ones(2, 3), (2, 3), (3, 1))
    check(torch.ones(3, 2).t(), (2, 3), (1, 2))
    check(torch.tensor(1.0), (), ())


def test_strides_that_no_element_uses_do_not_matter() -> None:
    check(torch.ones(1, 3), (1, 3), (99, 1))
    check(torch.ones(0, 3), (0, 3), (7, 5))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, 4), r"input x: shape \(2, 4\), expected \(2, 3\)"),
        (torch.ones(6), r"shape \(6,\), expected \(2, 3\)"),
        (torch.ones(3, 2).t(), r"strides \(1, 2\), expected \(3, 1\)"),
        (torch.ones(2, 3, dtype=torch.float64), r"element type torch\.float64, expected torch\.float32"),
        (torch.ones(2, 3, device="meta"), "device meta, expected cpu"),
        (
            torch.ones(5, dtype=torch.int64),
            r"element type torch\.int64, expected torch\.float32; shape \(5,\), expected \(2, 3\)",
        ),
    ],
    ids=["shape", "rank", "strides", "dtype", "device", "several"],
)
def test_another_layout_is_refused_with_every_difference(value: torch.Tensor, message: str) -> None:
    with pytest.raises(LayoutError, match=message) as caught:
        check(value, (2, 3), (3, 1))
    assert caught.value.code == "input-layout"
    assert "try     call through torch.compile" in str(caught.value)


def test_an_unaligned_input_of_repeated_elements_is_copied() -> None:
    base = torch.arange(9.0)
    odd = next(base[at : at + 4] for at in (0, 1) if base[at:].data_ptr() % 16)
    for value in (odd.expand(3, 4), odd[:3, None].expand(3, 4), odd[0].expand(3, 4)):
        copy = check_aligned_layout(value, "x", F32, "cpu", (3, 4), value.stride())
        assert copy.data_ptr() % 16 == 0 and copy.stride() == value.stride() and torch.equal(copy, value)


def test_an_unaligned_input_is_copied() -> None:
    base = torch.arange(9.0)
    aligned = base[:8] if base.data_ptr() % 16 == 0 else base[1:]
    odd = base[1:] if aligned.data_ptr() == base.data_ptr() else base[:8]
    assert check_aligned_layout(aligned, "x", F32, "cpu", (8,), (1,)) is aligned
    copy = check_aligned_layout(odd, "x", F32, "cpu", (8,), (1,))
    assert copy.data_ptr() % 16 == 0 and torch.equal(copy, odd)
    with pytest.raises(LayoutError):
        check_aligned_layout(odd, "x", F32, "cpu", (7,), (1,))


def test_memory_is_allocated_with_the_layout_asked_for() -> None:
    for made in (empty_strided((2, 3), (1, 2), F32, "cpu"), empty_strided_cpu((2, 3), (1, 2), F32)):
        assert (made.shape, made.stride(), made.dtype) == ((2, 3), (1, 2), F32)


def test_views_of_a_pool_share_its_memory() -> None:
    pool = empty_pool(64, "cpu")
    view = pool_view(pool, 16, (2, 3), (3, 1), F32)
    assert view.data_ptr() == pool.data_ptr() + 16 and view.shape == (2, 3)
    assert pool_view(pool, 64, (0, 3), (3, 1), F32).numel() == 0


def test_reinterpret_counts_from_the_first_element() -> None:
    base = torch.arange(12.0)
    view = reinterpret(base[2:], (2, 2), (1, 4), 1)
    assert view.tolist() == [[3.0, 7.0], [4.0, 8.0]]


def test_reinterpret_as_another_type() -> None:
    base = torch.tensor([0.0, 1.0, -2.0, 3.0])
    bits = reinterpret_dtype(base[1:], (2,), (1,), torch.int32, 1)
    assert bits.tolist() == [-1073741824, 1077936128]
    halves = reinterpret_dtype(base, (4,), (2,), torch.int16, 1)
    assert halves.tolist() == [0, 0x3F80, 0xC000 - 0x10000, 0x4040]


def test_reinterpret_needs_whole_elements() -> None:
    with pytest.raises(LayoutError, match="misaligned"):
        reinterpret_dtype(torch.arange(4.0)[1:], (1,), (1,), torch.float64, 0)


def test_quantised_results_stay_as_their_operators_make_them() -> None:
    value = torch.quantize_per_tensor(torch.randn(2, 3), 0.5, 3, torch.quint8)
    assert ensure_layout(value, (2, 3), (1, 2), torch.quint8) is value
    with pytest.raises(LayoutError, match="operator-dtype"):
        ensure_layout(value, (2, 3), (3, 1), torch.qint8)


def test_ensure_layout_copies_only_if_it_must() -> None:
    value = torch.arange(6.0).view(2, 3)
    assert ensure_layout(value, (2, 3), (3, 1)) is value
    assert ensure_layout(value.view(1, 6), (1, 6), (50, 1)).data_ptr() == value.data_ptr()
    copy = ensure_layout(value, (2, 3), (1, 2))
    assert copy.stride() == (1, 2) and torch.equal(copy, value)
    with pytest.raises(LayoutError, match=r"operator returned shape \(2, 3\) where \(3, 2\)"):
        ensure_layout(value, (3, 2), (3, 1))


def test_results_between_multiples_of_16_bytes_are_copied() -> None:
    line = torch.arange(8.0)
    assert ensure_aligned_layout(line[4:], (4,), (1,), F32).data_ptr() == line[4:].data_ptr()
    for value in (line[1:7].view(2, 3), line[1:7].view(3, 2).t(), line[1:3].view(2, 1).expand(2, 3)):
        made = ensure_aligned_layout(value, (2, 3), value.stride(), F32)
        assert made.data_ptr() % 16 == 0 and made.stride() == value.stride() and torch.equal(made, value)


def test_another_element_type_of_an_operator_is_refused() -> None:
    flags = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(LayoutError, match=r"operator returned element type torch\.bool where torch\.float32"):
        ensure_layout(flags, (2, 3), (3, 1), F32)
    assert ensure_layout(flags, (2, 3), (3, 1), torch.bool) is flags
    # what ATen calls the mask of a dropout of nothing
    empty = ensure_layout(torch.zeros(0, 3), (0, 3), (3, 1), torch.bool)
    assert empty.dtype is torch.bool and empty.shape == (0, 3)


def test_another_rank_is_refused_before_sizes_are_read() -> None:
    check_rank(torch.ones(2, 3), "x", 2)
    with pytest.raises(LayoutError, match=r"input x: shape \(2,\), expected 2 dimensions") as caught:
        check_rank(torch.ones(2), "x", 2)
    assert caught.value.code == "input-layout"


def test_elements_that_the_program_has_once_are_stored_once() -> None:
    column = torch.tensor([[1.0], [float("nan")], [3.0]])
    made = ensure_layout(column.expand(3, 2).clone(), (3, 2), (1, 0))
    assert made.stride() == (1, 0)
    torch.testing.assert_close(made, column.expand(3, 2), equal_nan=True, rtol=0, atol=0)
    with pytest.raises(LayoutError, match=r"different elements where strides \(1, 0\)"):
        ensure_layout(torch.arange(6.0).view(3, 2), (3, 2), (1, 0))
