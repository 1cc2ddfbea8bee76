"""Interpreters of all three IRs, Python, FX and C++ agree with eager on the same programs, forward and
backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coilwork_wrapper
from coilwork_cache import MemoryStore
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.text import parse_program
from coilwork_runtime import Builder, LayoutError, generated, load_python
from coilwork_wrapper import emit_fx, emit_python
from coilwork_wrapper.runtime_interface import FUNCTIONS
from integration_tests import all_levels
from integration_tests.all_levels import AllLevels


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function or module and the inputs of each call.

    Attributes:
        name: of the test.
        make: the function, from a fixed seed.
        calls: makers of inputs, one per call; later ones have other sizes if `dynamic`.
        dynamic: dimensions of each tensor input that are marked dynamic.
        graphs: roles of the graphs that must be compiled, once each.
    """

    name: str
    make: Callable[[], Callable[..., Any]]
    calls: Sequence[Callable[[], Sequence[Tensor]]]
    dynamic: tuple[int, ...] = ()
    graphs: tuple[str, ...] = ("inference",)

    def run(self, compiled: Callable[..., Any]) -> None:
        """Every call of `compiled`, with gradients where they are asked for."""
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
            for inputs_of_call in self.calls:
                inputs = inputs_of_call()
                for value in inputs:
                    for dim in self.dynamic:
                        torch._dynamo.mark_dynamic(value, dim)
                results = compiled(*inputs)
                if "backward" in self.graphs:
                    results.square().sum().backward()


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.gelu(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def update(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2).add_(y[:, None])
    y[1:].copy_(x[:-1, 0].exp())
    return x.sum(-1)


def scale_all(*given: Tensor) -> tuple[Tensor, ...]:
    for x in given:
        x.mul_(0.5)
    return tuple(x.exp() + 1 for x in given)


def rearranged(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    joined = torch.cat([x.transpose(0, 1), y, y[:, ::2].repeat(1, 2)], 1)
    return F.pad(joined, (1, 2)), torch.stack([x, x.flip(0)]).permute(2, 0, 1).contiguous(), joined.t()


def lookup(table: Tensor, rows: Tensor, picks: Tensor) -> tuple[Tensor, ...]:
    found = F.embedding(rows, table)
    return (
        found.gather(1, picks),
        table.index_select(0, rows[0]),
        torch.zeros_like(table).index_add(0, rows[0], found[0]),
    )


def by_parts(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Memory that several launches of one kernel fill, and another with other columns."""
    made = x.new_empty(len(x), 11)
    for start in range(0, len(x), 4):
        made = torch.as_strided_scatter(made, x[start : start + 4] @ w, (4, 8), (11, 1), 11 * start)
    made = torch.as_strided_scatter(made, x[:, :3].sin(), (len(x), 3), (11, 1), 8)
    return made, torch.as_strided_scatter(made, x[:1], (1, x.shape[1]), (11, 1), 23)


def ranked(x: Tensor) -> tuple[Any, ...]:
    return x.argmax(-1), x.max(0), x.sort(-1), x.topk(2), x.cumsum(0), x.var(-1), x.amin((0, 1))


def integers(x: Tensor) -> tuple[Tensor, ...]:
    return x // 3, x % 5, (x > 2) & (x != 7), x.sum(), torch.where(x > 0, x << 1, -x), (x > 0).any(0)


def branches(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() + 1, (x,))
    return result


def sized_branches(x: Tensor) -> Tensor:
    rows = x.shape[0]
    result: Tensor = torch.cond(x.sum() > 0, lambda y: y.sin() * rows, lambda y: y.flip(0) + rows, (x,))
    return result * 2


def countdown(n: Tensor, x: Tensor) -> tuple[Any, ...]:
    result: tuple[Any, ...] = torch.while_loop(lambda k, y: k > 0, lambda k, y: (k - 1, y * 2 + 1), (n, x))
    return result


def counted(x: Tensor) -> tuple[Any, ...]:
    result: tuple[Any, ...] = torch.while_loop(
        lambda k, left, y: left > 0, lambda k, left, y: (k + 3, left - 1, y * 2 + k), (1, x.shape[0], x)
    )
    return result


def chosen_by_size(x: Tensor) -> tuple[Any, ...]:
    many: Any = x.shape[0] > 4
    y, which = torch.cond(many, lambda y: (y.sin(), 7), lambda y: (y.cos(), 9), (x,))
    return y * 2, which


def sizes(x: Tensor) -> tuple[Any, ...]:
    return x.sum(0) / x.shape[0], x.shape[0] * 2, None, x.reshape(-1)


def selected(x: Tensor) -> Tensor:
    return x.nonzero().sum(1) + 1


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.25), nn.Linear(16, 4))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 5),
    )


def recurrent() -> Callable[[Tensor], Tensor]:
    cell = nn.LSTMCell(6, 8)

    def run(x: Tensor) -> Tensor:
        hidden = torch.zeros(x.shape[1], 8), torch.zeros(x.shape[1], 8)
        for step in x.unbind(0):
            hidden = cell(step, hidden)
        return torch.cat(hidden, -1)

    return run


def scaled_by_data(x: Tensor, y: Tensor) -> Tensor:
    return torch.histc(x, 6, -y.item(), 2 * y.item()) + 1


def literal() -> Callable[[Tensor], Tensor]:
    table = torch.tensor([1.0, 2.0, 3.0])
    return lambda x: x * table + torch.tensor([4.0, 5.0, 6.0])


def normal(*shape: int, gradient: bool = False) -> Tensor:
    return torch.randn(shape, requires_grad=gradient)


TRAINING = ("forward", "backward")
CASES: Sequence[Case] = (
    Case(name="pointwise and reduction", make=lambda: rms_norm, calls=[lambda: (normal(5, 16), normal(16))]),
    Case(
        name="dynamic rows",
        make=lambda: lambda x: torch.softmax(x * 2, -1).sum(0),
        calls=[lambda n=n: (normal(n, 24),) for n in (5, 33, 128)],
        dynamic=(0,),
    ),
    Case(
        name="dynamic attention",
        make=lambda: attention,
        calls=[
            lambda n=n, b=b: tuple(normal(b, n, 8) for _ in range(3)) for n, b in ((5, 2), (17, 3), (64, 2))
        ],
        dynamic=(0, 1),
    ),
    Case(name="inputs are overwritten", make=lambda: update, calls=[lambda: (normal(4, 5), normal(4))]),
    Case(
        name="one kernel for many sizes",
        make=lambda: scale_all,
        calls=[lambda: tuple(normal(n) for n in (*range(1, 34, 3), 32, 64, 4095, 9001))],
    ),
    Case(name="views and copies", make=lambda: rearranged, calls=[lambda: (normal(4, 6), normal(6, 4))]),
    Case(
        name="indexing",
        make=lambda: lookup,
        calls=[lambda: (normal(9, 5), torch.randint(0, 9, (3, 4)), torch.randint(0, 4, (3, 2, 5)))],
    ),
    Case(name="memory filled by parts", make=lambda: by_parts, calls=[lambda: (normal(12, 6), normal(6, 8))]),
    Case(name="ranking", make=lambda: ranked, calls=[lambda: (normal(6, 7),)]),
    Case(name="integers", make=lambda: integers, calls=[lambda: (torch.randint(-9, 9, (6, 7)),)]),
    Case(
        name="branches",
        make=lambda: branches,
        calls=[lambda: (torch.ones(3, 4),), lambda: (-torch.ones(3, 4),)],
    ),
    Case(
        name="branches of dynamic sizes",
        make=lambda: sized_branches,
        calls=[lambda: (torch.ones(3, 4),), lambda: (-torch.ones(7, 4),)],
        dynamic=(0,),
    ),
    Case(
        name="a loop",
        make=lambda: countdown,
        calls=[lambda n=n: (torch.tensor(n), normal(5)) for n in (3, 0)],
    ),
    Case(
        name="a loop that counts",
        make=lambda: counted,
        calls=[lambda n=n: (normal(n, 4),) for n in (3, 5)],
        dynamic=(0,),
    ),
    Case(
        name="branches by size",
        make=lambda: chosen_by_size,
        calls=[lambda n=n: (normal(n, 4),) for n in (3, 5)],
        dynamic=(0,),
    ),
    Case(
        name="sizes as results",
        make=lambda: sizes,
        calls=[lambda n=n: (normal(n, 6).t()[:4].t(),) for n in (5, 8)],
        dynamic=(0,),
    ),
    Case(name="sizes from data", make=lambda: selected, calls=[lambda: ((normal(8, 8) > 0).float(),)]),
    Case(
        name="numbers from data for operators",
        make=lambda: scaled_by_data,
        calls=[lambda: (normal(20), torch.tensor(1.5)), lambda: (normal(20), torch.tensor(0.5))],
    ),
    Case(name="literals", make=literal, calls=[lambda: (normal(2, 3),)]),
    Case(
        name="training a perceptron",
        make=perceptron,
        calls=[lambda n=n: (normal(n, 8, gradient=True),) for n in (5, 12)],
        dynamic=(0,),
        graphs=TRAINING,
    ),
    Case(
        name="training a convolution",
        make=convolution,
        calls=[lambda: (normal(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_(),)],
        graphs=TRAINING,
    ),
    Case(
        name="training an LSTM",
        make=recurrent,
        calls=[lambda: (normal(3, 2, 6, gradient=True),)],
        graphs=TRAINING,
    ),
)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    """Keeps kernels that several cases need."""
    return MemoryStore()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_all_levels_agree_with_eager(case: Case, store: MemoryStore) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    levels = AllLevels(store=store)
    function = case.make()
    compiled = torch.compile(function, backend=levels)
    case.run(compiled)
    assert tuple(levels.graphs) == case.graphs
    assert levels.calls == len(case.calls) * len(case.graphs)
    assert levels.refused == []


PROGRAM = """program @p {
  symbol s0 in [0, inf]
  input %x: f32[2, 3]
  input %y: f32[2, s0]
  bind s0 in [0, inf] size %y 1
  check %x
  check %y aligned
  extern "aten.isfinite.default" (%x) defines (%z: f32[2, 3])
  return (%z)
}"""


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ((torch.ones(2, 4), torch.ones(2, 5)), "input-layout"),
        ((torch.ones(3, 2).t(), torch.ones(2, 5)), "input-layout"),
        ((torch.ones(2, 3).double(), torch.ones(2, 5)), "input-layout"),
        ((torch.ones(2, 3, device="meta"), torch.ones(2, 5)), "input-layout"),
        ((torch.ones(2, 3), torch.ones(4)), "input-layout"),
        ((torch.ones(2, 3), torch.ones(4, 5)), "input-layout"),
        ((torch.ones(2, 3), torch.ones(2, 5)), "operator-dtype"),
    ],
    ids=["shape", "strides", "dtype", "device", "rank", "dynamic shape", "operator"],
)
def test_wrong_tensors_are_refused_in_the_same_words(inputs: Sequence[Tensor], code: str) -> None:
    program = parse_program(PROGRAM)
    builder = Builder(MemoryStore())
    python = load_python(emit_python(program, {}), builder=builder, constants={}, name="p")
    messages: list[str] = []
    for call in (
        lambda: python(list(inputs)),
        lambda: emit_fx(program, {}, runtime=generated)(*inputs),
    ):
        with pytest.raises(LayoutError) as caught:
            call()
        assert caught.value.code == code
        messages.append(str(caught.value))
    with pytest.raises(coilwork_wrapper.LayoutError) as alone:
        emit_fx(program, {})(*inputs)
    assert {*messages, str(alone.value)} == {messages[0]}


def test_the_runtime_exports_the_surface_of_generated_modules() -> None:
    values = ("LayoutMemory", "CppKernel", "KernelVersion", "TritonKernel", "random_input", "run_standalone")
    for name in (*FUNCTIONS, *values):
        assert name in generated.__all__


def test_a_level_that_differs_is_named(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()

    def wrong(program: Program, inputs: Sequence[Any], constants: Mapping[str, Tensor]) -> list[Any]:
        return [value * 1.001 for value in interpret_program(program, inputs, constants)]

    monkeypatch.setattr(all_levels, "interpret_program", wrong)
    with pytest.raises(all_levels.LevelError, match=r"program of inference_\w+: result differs"):
        torch.compile(lambda x: x.exp() + 1, backend=AllLevels(store=store))(torch.ones(3))
