"""Inputs that kernels may take to be aligned, and donated buffers that they overwrite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from coilwork.backend import backend
from coilwork_frontend.calling_convention import input_memory
from coilwork_frontend.calling_convention.input_memory import list_aligned_inputs, select_unshared
from coilwork_ir.fx_metadata import OWN_PADDING
from coilwork_lowering import lower


def aligned(
    function: Callable[..., object], *inputs: torch.Tensor, returned: int | None = None
) -> tuple[str, ...]:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    return list_aligned_inputs(lower(gm, name="g").graph, gm, returned=returned)


def test_an_inputs_offset_decides_if_it_is_aligned() -> None:
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


def test_views_of_one_memory_are_not_given_away() -> None:
    base, own = torch.zeros(4, 4), torch.zeros(3)
    values = [base, 7, base[1], own, None]
    assert select_unshared(values, [0, 2, 3]) == (3,)
    assert select_unshared(values, [1, 4]) == ()


def test_memory_that_starts_anywhere_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = torch.fx.Graph()
    for name, value in (("aligned", torch.zeros(8)), ("between", torch.zeros(9)[1:])):
        graph.placeholder(name).meta["val"] = value
    graph.output(())
    monkeypatch.setattr(input_memory, "list_donated_positions", lambda: (0, 1, 2))
    assert input_memory.list_donated_inputs(torch.fx.GraphModule({}, graph)) == (0,)


def test_memory_with_gaps_is_given_away_only_where_they_are_padding_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = torch.fx.Graph()
    for name in ("woven", "padded"):
        graph.placeholder(name).meta["val"] = torch.empty_strided((4, 30), (32, 1))
    for node in graph.find_nodes(op="placeholder", target="padded"):
        node.meta[OWN_PADDING] = True
    graph.output(())
    monkeypatch.setattr(input_memory, "list_donated_positions", lambda: (0, 1))
    assert input_memory.list_donated_inputs(torch.fx.GraphModule({}, graph)) == (1,)


def test_memory_of_any_size_is_whole_where_its_strides_say_so() -> None:
    environment = ShapeEnv()
    with FakeTensorMode(shape_env=environment) as mode:
        value = mode.from_tensor(
            torch.empty(6, 4, 8),
            symbolic_context=StatelessSymbolicContext(
                [DimDynamic.DYNAMIC, DimDynamic.DYNAMIC, DimDynamic.STATIC]
            ),
        )
        assert input_memory.is_whole(value)
        assert input_memory.is_whole(value.transpose(0, 2))
        assert not input_memory.is_whole(value[:, :, 1:])
    assert not environment.guards


def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    logits = x @ weight
    return torch.nn.functional.cross_entropy(logits, torch.arange(64) % 50)


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(64, 32, generator=generator, requires_grad=True),
        torch.randn(32, 50, generator=generator, requires_grad=True),
    )


def backward_peak(trace: Path) -> int:
    (path,) = trace.glob("backward_*/report.json")
    peak: int = json.loads(path.read_text())["peak_bytes_predicted"]
    return peak


def test_the_gradient_of_the_logits_takes_their_place(tmp_path: Path) -> None:
    peaks = {}
    for reuse in (True, False):
        torch._dynamo.reset()
        x, weight = leaves()
        trace = tmp_path / str(reuse)
        compiled = torch.compile(loss, backend=backend, options={"trace": str(trace), "reuse": reuse})
        compiled(x, weight).backward()
        expected_x, expected_weight = leaves()
        loss(expected_x, expected_weight).backward()
        torch.testing.assert_close(x.grad, expected_x.grad)
        torch.testing.assert_close(weight.grad, expected_weight.grad)
        peaks[reuse] = backward_peak(trace)
    assert peaks[False] - peaks[True] >= 64 * 50 * 4


def test_a_graph_that_is_kept_keeps_its_values() -> None:
    torch._dynamo.reset()
    x, weight = leaves()
    value = torch.compile(loss, backend=backend)(x, weight)
    value.backward(retain_graph=True)
    value.backward(retain_graph=True)
    expected_x, expected_weight = leaves()
    loss(expected_x, expected_weight).backward()
    assert x.grad is not None and expected_x.grad is not None
    torch.testing.assert_close(x.grad, 2 * expected_x.grad)


def test_a_graph_compiled_to_be_used_once_may_be_kept() -> None:
    """It does not matter which backward was compiled, or stored, first."""
    expected_x, expected_weight = leaves()
    loss(expected_x, expected_weight).backward()
    for options in ({"cache": False}, {}, {}):
        torch._dynamo.reset()
        x, weight = leaves()
        compiled = torch.compile(loss, backend=backend, options=options)
        compiled(x, weight).backward()
        value = compiled(x, weight)
        value.backward(retain_graph=True)
        value.backward()
        compiled(x, weight).backward()
        assert x.grad is not None and expected_x.grad is not None
        torch.testing.assert_close(x.grad, 4 * expected_x.grad)
        torch.testing.assert_close(weight.grad, 4 * expected_weight.grad)


def test_donation_follows_torch_s_setting(tmp_path: Path) -> None:
    torch._dynamo.reset()
    x, weight = leaves()
    with torch._functorch.config.patch(donated_buffer=False):
        compiled = torch.compile(loss, backend=backend, options={"trace": str(tmp_path)})
        compiled(x, weight).backward()
        kept = compiled(x, weight)
        kept.backward(retain_graph=True)
        kept.backward()
    expected_x, expected_weight = leaves()
    loss(expected_x, expected_weight).backward()
    assert x.grad is not None and expected_x.grad is not None
    torch.testing.assert_close(x.grad, 3 * expected_x.grad)


def test_what_is_returned_and_saved_in_one_copy_is_not_given_away() -> None:
    def two_copies(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # the copies become one: a view of it is returned, another view is saved for the backward
        first, second = x.flatten().view(6, 1), x.flatten().view(1, 6).expand(6, 6)
        return first, torch.nn.functional.mse_loss(second, second * 0.5)

    torch._dynamo.reset()
    x = torch.arange(6.0).view(3, 2).t().requires_grad_()
    results = torch.compile(two_copies, backend=backend)(x)
    expected = two_copies(x)
    (gradient,) = torch.autograd.grad(sum(r.sum() for r in results), x)
    (wanted,) = torch.autograd.grad(sum(r.sum() for r in expected), x)
    torch.testing.assert_close(gradient, wanted)
    torch.testing.assert_close(results, expected)
