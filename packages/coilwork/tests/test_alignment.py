"""Which inputs kernels may take to be aligned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.backend import backend
from coilwork_frontend.calling_convention.input_memory import list_aligned_inputs
from coilwork_lowering import lower


def aligned(
    function: Callable[..., object], *inputs: torch.Tensor, returned: int | None = None
) -> tuple[str, ...]:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    return list_aligned_inputs(lower(gm, name="g").graph, gm, returned=returned)


def test_offsets_decide() -> None:
    base = torch.zeros(64)
    assert aligned(lambda a, b, c: (a + b + c,), base[:16], base[4:20], base[1:17]) == ("a_1", "b_1")


def test_offsets_count_in_bytes() -> None:
    base = torch.zeros(64, dtype=torch.bfloat16)
    assert aligned(lambda a, b: (a + b,), base[4:20], base[8:24]) == ("b_1",)


def test_inputs_whose_own_memory_matters_are_left_out() -> None:
    x, y = torch.zeros(16), torch.zeros(16)
    assert aligned(lambda a, b: (a.add_(b), b * 2), x, y) == ("b_1",)
    assert aligned(lambda a, b: (a.view(4, 4), b * 2), x, y) == ("b_1",)
    assert aligned(lambda a, b: (a, b * 2), x, y) == ("b_1",)


def test_a_place_in_the_storage_is_none_in_a_copy() -> None:
    x, y = torch.zeros(16), torch.zeros(16)
    assert aligned(lambda a, b: (a.as_strided((3,), (2,), 1) + 1, b * 2), x, y) == ("b_1",)
    assert aligned(lambda a, b: (a.as_strided((3,), (2,)) + 1, b * 2), x, y) == ("a_1", "b_1")


def test_views_that_are_only_read_do_not_matter() -> None:
    x, w = torch.zeros(4, 16), torch.zeros(8, 16)
    assert aligned(lambda a, b: (a + 1, a @ b.t()), x, w) == ("a_1", "b_1")


def test_whoever_asks_for_values_only_takes_a_copy_of_what_is_returned() -> None:
    x, y = torch.zeros(16), torch.zeros(16)
    assert aligned(lambda a, b: (b * 2, a, a.view(4, 4)), x, y, returned=1) == ("a_1", "b_1")
    assert aligned(lambda a, b: (b * 2, a.view(4, 4), a), x, y, returned=2) == ("b_1",)
    assert aligned(lambda a, b: (a.add_(b), a), x, y, returned=0) == ("b_1",)


def test_a_part_that_is_returned_is_memory_of_the_caller_s() -> None:
    compiled = torch.compile(
        lambda x: (x.split([8, 5], 0)[1].squeeze(), x + 2), backend=backend, options={"strict": True}
    )
    for offset in (0, 3):
        x = torch.rand(20).as_strided((13,), (1,), offset).requires_grad_()
        part, _ = compiled(x)
        assert part.data_ptr() == x.data_ptr() + 32


def test_saved_inputs_that_are_not_aligned() -> None:
    compiled = torch.compile(lambda a, b: (a * b).exp(), backend=backend, options={"strict": True})
    for offset in (0, 1):
        a, b = (torch.rand(33 + offset)[offset:].requires_grad_() for _ in range(2))
        got = torch.autograd.grad(compiled(a, b).sum(), (a, b))
        wanted = torch.autograd.grad((a * b).exp().sum(), (a, b))
        torch.testing.assert_close(got, wanted)
