"""Behaviour that a user of torch.compile counts on, against eager: layouts, aliasing, mutation, training,
sizes, threads.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning, OptionError

Compile = Callable[..., Callable[..., Any]]


def same_layout(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    span = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
    storage = torch.empty(span, dtype=x.dtype)
    result = storage.as_strided(x.shape, x.stride())
    if x.numel():
        storage.copy_(x.as_strided((span,), (1,)))
    return result


def agrees(compiled: Callable[..., Any], function: Callable[..., Any], *inputs: Any) -> Any:
    """Results and changed inputs are eager's; what `compiled` returned."""
    ours = [same_layout(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    eagers = [same_layout(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    result, expected = compiled(*ours), function(*eagers)
    torch.testing.assert_close(result, expected, check_stride=True)
    torch.testing.assert_close(ours, eagers)
    return result


# Inputs


def mixed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin() * 2 + 1, x.sum(-1), x.sum(0), x.mean()


LAYOUTS: Sequence[tuple[str, Callable[[], torch.Tensor]]] = (
    ("contiguous", lambda: torch.randn(5, 7)),
    ("transposed", lambda: torch.randn(7, 5).t()),
    ("strided", lambda: torch.randn(10, 21)[::2, 1::3]),
    ("expanded", lambda: torch.randn(1, 7).expand(5, 7)),
    ("one element", lambda: torch.randn(1, 1)),
    ("one row", lambda: torch.randn(1, 7)),
    ("scalar", lambda: torch.tensor(3.0)),
    ("empty rows", lambda: torch.randn(0, 7)),
    ("rank 4", lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)),
    ("f64", lambda: torch.randn(5, 7, dtype=torch.float64)),
    ("bf16", lambda: torch.randn(5, 8, dtype=torch.bfloat16)),
)


@pytest.mark.parametrize(("name", "make"), LAYOUTS, ids=[name for name, _ in LAYOUTS])
def test_inputs_of_any_layout_give_eagers_results_and_strides(
    name: str, make: Callable[[], torch.Tensor], strictly: Compile
) -> None:
    x = make()
    ours, eagers = strictly(mixed)(x), mixed(x)
    tolerance = {"rtol": 0.02, "atol": 0.02} if x.dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for result, expected in zip(ours, eagers, strict=True):
        torch.testing.assert_close(result, expected, check_stride=x.numel() > 0, equal_nan=True, **tolerance)


def test_empty_tensors_give_eagers_results(strictly: Compile) -> None:
    agrees(
        strictly(lambda x: (x.relu() + 1, x.sum(), x @ x.t())),
        lambda x: (x.relu() + 1, x.sum(), x @ x.t()),
        torch.randn(0, 3),
    )


def test_channels_last_is_kept(strictly: Compile) -> None:
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).to(
        memory_format=torch.channels_last
    )
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        result = strictly(layer)(x)
        torch.testing.assert_close(result, layer(x), check_stride=True)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_addresses_that_are_not_aligned(strictly: Compile) -> None:
    compiled = strictly(lambda x: x * 2 + 1)
    base = torch.randn(65)
    agrees(compiled, lambda x: x * 2 + 1, base[:64])
    torch.testing.assert_close(compiled(base[1:]), base[1:] * 2 + 1)


# Mutation and aliasing


def test_inputs_are_overwritten(strictly: Compile) -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(y)
        y[1:].copy_(x[:-1].exp())
        return x.sum(-1)

    agrees(strictly(update), update, torch.randn(4, 5), torch.randn(4, 5))


def test_strided_input_is_overwritten_in_place(strictly: Compile) -> None:
    def update(x: torch.Tensor) -> None:
        x.add_(1)

    base = torch.zeros(6, 4)
    strictly(update)(base[::2, 1:])
    expected = torch.zeros(6, 4)
    expected[::2, 1:] = 1
    assert torch.equal(base, expected)


def test_views_of_inputs_share_their_memory(strictly: Compile) -> None:
    x = torch.randn(4, 5)
    rows, transposed, same = strictly(lambda x: (x[1:], x.t(), x))(x)
    assert rows.data_ptr() == x[1:].data_ptr()
    assert transposed.data_ptr() == x.data_ptr() and transposed.stride() == (1, 5)
    assert same is x


def test_views_share_memory_where_sizes_are_sums() -> None:
    """Places in a row of all elements are divided by `n - 1`, and put together again."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padded = torch.nn.functional.pad(x, [-1, 0, 2, 0], value=-2.0)
        return padded, padded.permute(0, 1, 2).reshape(-1)

    compiled = torch.compile(function, backend=backend, dynamic=True, options={"strict": True})
    for size in (4, 3):
        padded, flat = agrees(compiled, function, torch.randn(size, 1, size))
        assert padded.data_ptr() == flat.data_ptr()


def test_one_tensor_returned_twice_and_as_a_view(strictly: Compile) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y, y.t(), y[0]

    first, second, transposed, row = agrees(strictly(function), function, torch.randn(3, 4))
    assert first is second
    assert first.data_ptr() == transposed.data_ptr() == row.data_ptr()


def test_results_are_not_overwritten_by_the_next_call(strictly: Compile) -> None:
    compiled = strictly(lambda x: torch.softmax(x * 2, -1))
    x = torch.randn(3, 4)
    first = compiled(x)
    kept = first.clone()
    compiled(x + 1)
    assert torch.equal(first, kept)


# Values that are no tensors


def test_numbers_and_none(strictly: Compile) -> None:
    def function(x: torch.Tensor, k: int, scale: float) -> tuple[Any, ...]:
        return x * k * scale, None, k, x.shape[0], scale

    agrees(strictly(function), function, torch.randn(3, 4), 3, 0.5)


def test_tensors_written_in_the_program_are_constants(strictly: Compile) -> None:
    table = torch.tensor([1.0, 2.0, 3.0])

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * table + torch.tensor([4.0, 5.0, 6.0]) + torch.tensor(7)

    agrees(strictly(function), function, torch.randn(2, 3))


def test_a_function_that_computes_nothing(strictly: Compile) -> None:
    x = torch.randn(3)
    assert strictly(lambda x: x)(x) is x


def test_branches_on_data(strictly: Compile) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos(), (x,))
        return result

    compiled = strictly(function)
    for x in (torch.ones(3, 4), -torch.ones(3, 4)):
        agrees(compiled, function, x)


def test_calls_with_effects_stay(strictly: Compile) -> None:
    """The check of linalg.inv is ordered by tokens in torch's graphs, and needed by nobody."""

    def inverse(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.linalg.inv(x) * 2
        return result

    compiled = strictly(inverse)
    regular = torch.randn(4, 4) + 5 * torch.eye(4)
    ours, eagers = (regular.clone().requires_grad_() for _ in range(2))
    compiled(ours).square().sum().backward()
    inverse(eagers).square().sum().backward()
    torch.testing.assert_close(ours.grad, eagers.grad)
    with pytest.raises(RuntimeError, match="singular"):
        compiled(torch.zeros(4, 4))


@pytest.mark.parametrize("wrapper", ["python", "fx", "cpp"])
def test_a_kernel_that_only_checks_positions(strictly: Compile, wrapper: str) -> None:
    """The position of the least of one element is 0 whatever it is: what is left of its check reads no
    memory.
    """

    def least(x: torch.Tensor) -> torch.Tensor:
        return torch.ceil(x).min(-1)[0] * 2

    x = torch.ones(1, 1, requires_grad=True)
    strictly(least, wrapper=wrapper)(x).sum().backward()
    assert x.grad is not None and x.grad.item() == 0.0


# Random numbers


def test_dropout_repeats_under_a_seed(strictly: Compile) -> None:
    compiled = strictly(lambda x: F.dropout(x, 0.25))
    x = torch.ones(4096)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(compiled(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert results[0].unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (results[0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.05)


def test_dropout_uses_the_same_mask_backward(strictly: Compile) -> None:
    x = torch.ones(512, requires_grad=True)
    result = strictly(lambda x: F.dropout(x * 2, 0.5))(x)
    result.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, result.detach())


# Training


def test_steps_of_training_change_a_model_as_eager_does(strictly: Compile) -> None:
    eager = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.GELU(),
        torch.nn.LayerNorm(16),
        torch.nn.BatchNorm1d(16),
        torch.nn.Linear(16, 4),
    )
    model = copy.deepcopy(eager)
    x = torch.randn(6, 8)

    def train(model: torch.nn.Module, through: Callable[..., Callable[..., Any]]) -> list[torch.Tensor]:
        # in eager too, eps keeps rounding noise in zero gradients from becoming full steps
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
        loss = through(lambda: model(x).square().mean())
        update = through(lambda: optimizer.step())
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            update()
            losses.append(value.detach())
        return losses

    expected = train(eager, lambda f: f)
    torch.testing.assert_close(train(model, strictly), expected)
    torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()), rtol=1e-4, atol=1e-5)
    assert expected[-1] < expected[0]


def test_second_derivatives_are_torchs_own_error(strictly: Compile) -> None:
    x = torch.randn(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(strictly(lambda x: (x**3).sum())(x), x, create_graph=True)
    torch.testing.assert_close(gradient, 3 * x**2)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


# Sizes


def test_one_compile_for_all_sizes() -> None:
    graphs = []

    def counting(gm: torch.fx.GraphModule, inputs: Sequence[Any], **rest: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return backend(gm, inputs, **rest)

    def attention(x: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x @ x.transpose(-1, -2) / x.shape[-1], -1) @ x).sum(1)

    compiled = torch.compile(attention, backend=counting, options={"strict": True})
    for batch, length in ((3, 5), (2, 17), (7, 64), (5, 33)):
        x = torch.randn(batch, length, 8)
        for dim in (0, 1):
            torch._dynamo.mark_dynamic(x, dim)
        agrees(compiled, attention, x) if len(graphs) else torch.testing.assert_close(
            compiled(x), attention(x)
        )
    assert len(graphs) == 1


def test_sizes_that_depend_on_data(strictly: Compile) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2 + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = strictly(function)
        for x in (torch.randn(16), torch.ones(4), -torch.ones(4)):
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), function(x))


def test_a_part_of_what_was_found(strictly: Compile) -> None:
    """Torch adds up the bounds of such a part, which it does not know, by `sym_sum`."""

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(x, mask).narrow(0, 2, 3) * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = strictly(function)
        for count in (8, 5):
            mask = torch.arange(10) < count
            torch.testing.assert_close(compiled(torch.arange(10.0), mask), torch.tensor([4.0, 6.0, 8.0]))


# Threads


def test_two_models_in_two_threads(strictly: Compile) -> None:
    start = threading.Barrier(2)

    def work(width: int) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.GELU(), torch.nn.LayerNorm(width))
        compiled = strictly(model, cache=False)
        x = torch.randn(5, 8)
        start.wait(timeout=60)
        results = []
        for call in (compiled, model):
            leaf = x.clone().requires_grad_()
            value = call(leaf)
            value.square().sum().backward()
            results.append((value.detach(), leaf.grad))
        return results

    with ThreadPoolExecutor(max_workers=2) as threads:
        for ours, eagers in threads.map(work, (16, 17)):
            torch.testing.assert_close(ours, eagers)


# Entry


def test_wrong_options_are_our_error() -> None:
    compiled = torch.compile(torch.sin, backend=backend, options={"stricct": True})
    with pytest.raises(Exception, match="did you mean 'strict'") as caught:
        compiled(torch.ones(2))
    assert isinstance(caught.value.inner_exception, OptionError)


@pytest.mark.filterwarnings(f"error::{CoilworkFallbackWarning.__module__}.{CoilworkFallbackWarning.__name__}")
def test_several_graphs_of_one_function() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        torch._dynamo.graph_break()
        return y.cos() + 1

    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))


def test_sums_of_rows_that_were_found() -> None:
    def mixed(x: torch.Tensor, choice: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        for expert in range(3):
            rows, place = torch.where(choice == expert)
            result = result.index_add(0, rows, x[rows].sin() * weight[rows, place, None])
        return result

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(mixed, backend=backend, options={"strict": True, "accumulation": "sorted"})
        for tokens in (400, 7):
            # a token may choose an expert twice, and one expert nobody chooses
            choice = torch.randint(0, 2, (tokens, 2))
            x, weight = torch.randn(tokens, 33).requires_grad_(), torch.rand(tokens, 2)
            wanted = mixed(x, choice, weight)
            got = compiled(x, choice, weight)
            torch.testing.assert_close(got, wanted)
            upstream = torch.randn_like(x)
            torch.testing.assert_close(
                torch.autograd.grad(got, x, upstream), torch.autograd.grad(wanted, x, upstream)
            )


@pytest.mark.parametrize(
    ("function", "error"),
    [(lambda x, k: x[k] * 2, IndexError), (lambda x, k: x.gather(0, k) * 2, RuntimeError)],
    ids=["index", "gather"],
)
def test_positions_out_of_range_are_named_with_line(
    function: Callable[..., Any], error: type[Exception]
) -> None:
    torch._dynamo.reset()
    with pytest.raises(error, match="index out of range in aten") as refused:
        torch.compile(function, backend=backend)(torch.randn(9), torch.tensor([9]))
    assert refused.type is error
    assert any("test_backend.py" in note for note in refused.value.__notes__)
