"""Graphs that an earlier process traced: what is restored without tracing, and that it is what eager does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from coilwork.backend import backend
from coilwork_cache import LocalStore, TraceCache
from coilwork_frontend import compile_captured

Program = Callable[..., Any]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One element for each graph that AOTAutograd traces."""
    traces: list[None] = []
    run = compile_captured.compile_with_aot_autograd

    def count(*args: Any, **kwargs: Any) -> Any:
        traces.append(None)
        return run(*args, **kwargs)

    monkeypatch.setattr(compile_captured, "compile_with_aot_autograd", count)
    return traces


def compile_anew(program: Program, folder: Path, **options: Any) -> Program:
    """Compile as a new process does."""
    torch._dynamo.reset()
    settings = {"strict": True, "cache_dir": str(folder)}
    return torch.compile(program, backend=backend, options=settings, **options)


def inputs(*grads: bool) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 6).requires_grad_(grad) for grad in grads]


def observe(program: Program, *grads: bool) -> list[object]:
    """Return results, gradients, inputs afterwards, and which results are views, require gradients, or are an
    input."""
    given = inputs(*grads)
    results = program(*given)
    tensors = [one for one in results if isinstance(one, Tensor)]
    facts: list[object] = [
        (one.requires_grad, one.is_leaf, one.stride(), one._base is None, [one is value for value in given])
        for one in tensors
    ]
    differentiable = [one for one in tensors if one.requires_grad]
    if differentiable:
        torch.stack([one.square().sum() for one in differentiable]).sum().backward()
    return [*results, *(value.grad for value in given), *given, *facts]


def check_equal(one: list[object], other: list[object]) -> None:
    torch.testing.assert_close(
        [value for value in one if isinstance(value, Tensor)],
        [value for value in other if isinstance(value, Tensor)],
    )
    rest = [[value for value in values if not isinstance(value, Tensor)] for values in (one, other)]
    assert rest[0] == rest[1]


def hands_back(x: Tensor, y: Tensor) -> Any:
    """An input itself, a part without gradient, a view of a result, and a number."""
    z = (x * y).exp()
    return x, z.detach().cos(), z.view(-1), 3, None


def overwrites(x: Tensor, y: Tensor) -> Any:
    x.mul_(2.0)
    return (y.sin() + x,)


def splits(x: Tensor, y: Tensor) -> Any:
    first, second = (x @ y.t()).softmax(-1).chunk(2)
    return first, second.relu()


def holds_a_constant(x: Tensor, y: Tensor) -> Any:
    return (x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) + y.sin(),)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradients[0]


region = torch.compiler.nested_compile_region(lambda x: x.tanh() + 1)


def calls_nested_graphs(x: Tensor, y: Tensor) -> Any:
    first = checkpoint(lambda x: Square.apply(x.sin()).exp(), x, use_reentrant=False)
    second = torch.cond(x.sum() > y.sum(), lambda x: x.sin(), lambda x: x.cos() * 2, (x,))
    _, third = scan(lambda carry, x: (carry + x, (carry * x).clone()), x[0], x, dim=0)
    return first + region(region(y)), second, third


def loops(x: Tensor, y: Tensor) -> Any:
    """The second row of inputs is a query, and each row a head."""
    _, last = while_loop(
        lambda step, x: step < 3, lambda step, x: (step + 1, x.sin() + 1), (torch.tensor(0), x.exp())
    )
    heads = y[None, :, :, None]
    return last, flex_attention(
        heads, heads, heads, score_mod=lambda score, b, h, q, k: score + 0.1 * (q - k)
    )


@pytest.mark.parametrize(
    ("program", "grads"),
    [
        (calls_nested_graphs, (True, True)),
        (loops, (False, False)),
        (holds_a_constant, (True, False)),
        (holds_a_constant, (False, False)),
        (hands_back, (True, False)),
        (overwrites, (False, True)),
        (splits, (True, True)),
        (splits, (False, False)),
    ],
)
def test_a_traced_graph_is_restored(
    program: Program, grads: tuple[bool, ...], traced: list[None], tmp_path: Path
) -> None:
    expected = observe(program, *grads)
    for _ in range(2):
        compiled = compile_anew(program, tmp_path)
        check_equal(observe(compiled, *grads), expected)
        assert len(traced) == 1


def test_a_restored_backward_takes_transforms(traced: list[None], tmp_path: Path) -> None:
    """Batched gradients have no memory: the operators come from the record."""
    (x,) = inputs(True)
    for _ in range(2):
        compiled = compile_anew(lambda x: (x * 2).sin() @ torch.ones(6, 3), tmp_path)
        result = compiled(x)
        directions = torch.randn(5, *result.shape)
        (batched,) = torch.autograd.grad(result, x, directions, retain_graph=True, is_grads_batched=True)
        single = [torch.autograd.grad(result, x, one, retain_graph=True)[0] for one in directions]
        torch.testing.assert_close(batched, torch.stack(single))
    assert len(traced) == 1


def test_views_that_torch_repeats_are_traced(traced: list[None], tmp_path: Path) -> None:
    for _ in range(2):
        check_equal(
            observe(compile_anew(lambda x: (x.t(), x.sin()), tmp_path), True),
            observe(lambda x: (x.t(), x.sin()), True),
        )
    assert len(traced) == 2


def test_a_damaged_record_is_traced_again(traced: list[None], tmp_path: Path) -> None:
    observe(compile_anew(splits, tmp_path), True, True)
    for damage in ("metadata", "lines", "graphs", "sizes"):
        store = LocalStore(tmp_path)
        records = TraceCache(store)
        (key,) = [entry.key for entry in store.entries() if entry.kind == "trace"]
        record = records.get(key)
        assert record is not None
        (variant,) = record["variants"]
        records.put(key, {"variants": [{**variant, damage: {"forward": 7}}]})
        before = len(traced)
        check_equal(observe(compile_anew(splits, tmp_path), True, True), observe(splits, True, True))
        assert len(traced) == before + 1


def sum_pairs(x: Tensor) -> Tensor:
    """Tracing adds the guard that there is more than one pair."""
    return x.unfold(0, 2, 2).sum(-1)


def scores(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x.sin() @ y.t(), -1) * x.shape[0]


@pytest.mark.parametrize("dynamic", [True, None])
def test_symbolic_sizes_are_restored(dynamic: bool | None, traced: list[None], tmp_path: Path) -> None:
    """`None`: sizes are symbolic from the second call with other sizes on."""
    counts = []
    for _ in range(2):
        compiled = compile_anew(scores, tmp_path, dynamic=dynamic)
        for rows in (5, 9, 12):
            x = torch.randn(rows, 7, requires_grad=True, dtype=torch.float64)
            y = torch.randn(rows + 10, 7, dtype=torch.float64)
            result, expected = compiled(x, y), scores(x, y)
            torch.testing.assert_close(result, expected)
            given = torch.autograd.grad(result.square().sum(), x)
            torch.testing.assert_close(given, torch.autograd.grad(expected.square().sum(), x))
        counts.append(len(traced))
    assert counts == [1 if dynamic else 2] * 2


def test_guards_of_tracing_are_restored(traced: list[None], tmp_path: Path) -> None:
    """In the second process, sizes that no record's guards hold for compile anew."""
    captured: list[None] = []

    def note(gm: Any, example_inputs: Any) -> Any:
        captured.append(None)
        return backend(gm, example_inputs, options={"strict": True, "cache_dir": str(tmp_path)})

    for process in range(2):
        torch._dynamo.reset()
        captured.clear()
        compiled = torch.compile(sum_pairs, backend=note, dynamic=True)
        for rows in (6, 8, 3, 20):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), sum_pairs(x), check_stride=True)
        if process == 0:
            first = (len(captured), len(traced))
    assert first == (len(captured), len(traced))
    assert len(captured) > 1


BAD_INDEX = """
def look_up(x, index):
    return x.sin()[index]
"""


@pytest.mark.parametrize(("name", "above"), [("model.py", ""), ("model.py", "\n\n\n"), ("other.py", "")])
def test_what_is_restored_names_the_lines_at_hand(
    name: str, above: str, traced: list[None], tmp_path: Path
) -> None:
    """The function has moved since it was compiled: down by `above`, or to the file `name`."""
    folder = tmp_path / "cache"
    notes = []
    for place, text in ((tmp_path / "model.py", BAD_INDEX), (tmp_path / name, above + BAD_INDEX)):
        place.write_text(text)
        names: dict[str, Any] = {}
        exec(compile(text, str(place), "exec"), names)
        look_up = compile_anew(names["look_up"], folder)
        look_up(torch.randn(5, 3), torch.tensor([1, 2]))
        with pytest.raises(IndexError) as caught:
            look_up(torch.randn(5, 3), torch.tensor([1, 9]))
        notes.append("\n".join(caught.value.__notes__))
    assert len(traced) == 1
    assert "model.py:3" in notes[0]
    assert f"{name}:{3 + len(above)}" in notes[1]
    assert name == "model.py" or "model.py" not in notes[1]


def test_pythons_executor_runs_restored_graphs(traced: list[None], tmp_path: Path) -> None:
    settings = {"strict": True, "cache_dir": str(tmp_path), "executor": "python"}
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(splits, backend=backend, options=settings)
        check_equal(observe(compiled, True, False), observe(splits, True, False))
    assert len(traced) == 1


def test_numbers_that_become_constants_are_known_to_the_next_process(
    traced: list[None], tmp_path: Path
) -> None:
    """Dynamo captures a norm's epsilon as a number of its own, and once more as a constant."""
    norm = torch.nn.LayerNorm(6)
    counts = []
    for _ in range(2):
        for grad in (False, True):
            del traced[:]
            compiled = compile_anew(norm, tmp_path, dynamic=True)
            given = inputs(grad)[0]
            torch.testing.assert_close(compiled(given), norm(given))
            counts.append(len(traced))
        norm.eps = 1e-5
    assert counts[2:] == [0, 0] and counts[0] > 0
    norm.eps = 0.5
    given = inputs(True)[0]
    torch.testing.assert_close(compile_anew(norm, tmp_path, dynamic=True)(given), norm(given))


def test_the_log_says_why_a_graph_is_traced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="coilwork")
    x = torch.randn(4, requires_grad=True)
    cases: dict[str, tuple[Program, dict[str, Any]]] = {
        "no process has traced it yet": (lambda x: x.exp(), {}),
        "a result is a view that torch makes again": (lambda x: x[1:], {}),
        "value that is complex": (lambda x: torch.fft.fft(x).abs(), {}),
        "the cache is off": (lambda x: x.exp(), {"cache": False}),
        "a check of calls needs the graph": (lambda x: x.exp(), {"check_nan": "results"}),
    }
    for reason, (program, options) in cases.items():
        caplog.clear()
        torch._dynamo.reset()
        settings = {"strict": True, "cache_dir": str(tmp_path), **options}
        torch.compile(program, backend=backend, options=settings)(x).sum().backward()
        assert reason in caplog.text
