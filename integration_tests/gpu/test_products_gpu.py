"""Products whose result the caller gets, of no whole vectors: right, dense, and in little room."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coilwork.backend import backend
from integration_tests import interpreted_template, test_grouped_products
from integration_tests.model_checks import no_fallback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def logits(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x @ w.t()).view(4, -1, len(w))


def biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x, w.t())


@pytest.mark.parametrize("contractions", ["auto", "aten"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("function", "rows", "columns"), [(logits, 2048, 50257), (biased, 2048, 30522)], ids=["gpt2", "bert"]
)
def test_rows_that_are_no_whole_vectors(
    function: Callable[[Tensor, Tensor, Tensor], Tensor],
    rows: int,
    columns: int,
    dtype: torch.dtype,
    contractions: str,
) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w, b = (
        (torch.randn(*shape, device="cuda") / 8).to(dtype)
        for shape in ((rows, 768), (columns, 768), (columns,))
    )
    compiled = torch.compile(function, backend=backend, options={"contractions": contractions})
    with torch.no_grad(), no_fallback():
        expected = function(x, w, b)
        torch.testing.assert_close(compiled(x, w, b), expected, rtol=0.02, atol=0.02)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = compiled(x, w, b)
        assert found.stride() == expected.stride()
        more = torch.cuda.max_memory_allocated() - before - found.numel() * found.element_size()
        # with calls one block, and the last columns
        assert more <= (66_000_000 if contractions == "aten" else 1_000_000)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


class Activated(nn.Module):
    """Two layers with an activation of the first one's sums."""

    def __init__(self, activation: Callable[[Tensor], Tensor], biased: bool) -> None:
        super().__init__()
        self.activation = activation
        self.up, self.down = nn.Linear(768, 3072, bias=biased), nn.Linear(3072, 768, bias=biased)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.activation(self.up(x)))
        return found


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("activation", [functional.relu, gelu_new], ids=["relu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_an_activation_is_a_part_of_the_product(
    activation: Callable[[Tensor], Tensor], dtype: torch.dtype, biased: bool, tmp_path: Path
) -> None:
    """As near to a float64 reference as eager, in one kernel less; GELU in 32 bits is a kernel of its own."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Activated(activation, biased).to("cuda", dtype)
    x = torch.randn(4, 512, 768, device="cuda", dtype=dtype)
    options = {"cache": False, "trace": str(tmp_path)}
    with torch.no_grad(), no_fallback():
        eager, found = model(x), torch.compile(model, backend=backend, options=options)(x)
        reference = model.double()(x.double())
    error, wanted = ((one.double() - reference).norm() for one in (found, eager))
    assert error <= 1.5 * wanted
    (report,) = (json.loads(path.read_text()) for path in tmp_path.rglob("report.json"))
    apart = dtype == torch.float32 and activation is gelu_new
    assert report["kernels"] == int(apart)


def test_gradients_with_a_part_of_the_product() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Activated(functional.relu, True).to("cuda", torch.bfloat16)
    x = torch.randn(4, 512, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with no_fallback():
        expected = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        found = torch.autograd.grad(
            torch.compile(model, backend=backend)(x).square().sum(), [x, *model.parameters()]
        )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05 * other.abs().max().item())


def split(x: Tensor, w: Tensor) -> Tensor:
    """Products of few results and long sums, which the library adds up in parts."""
    return (x @ w).relu() @ w.t()


def operands() -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(64, 16384, device="cuda", generator=generator)
    return x, torch.randn(16384, 256, device="cuda", generator=generator) / 128


def test_scratch_memory_of_products_is_the_streams() -> None:
    torch._dynamo.reset()
    x, w = operands()
    compiled = torch.compile(split, backend=backend, options={"products": "cublaslt"})
    side = torch.cuda.Stream()
    with torch.no_grad(), no_fallback():
        expected = split(x.double(), w.double())
        for stream in (torch.cuda.current_stream(), side, side):
            with torch.cuda.stream(stream):
                torch.testing.assert_close(compiled(x, w).double(), expected, rtol=1e-3, atol=1e-3)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = compiled(x, w)
        hidden = 64 * 256 * 4
        assert torch.cuda.max_memory_allocated() - before <= found.numel() * 4 + 2 * hidden
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


def test_scratch_memory_of_products_in_a_captured_graph_is_the_graphs() -> None:
    torch._dynamo.reset()
    x, w = operands()
    compiled = torch.compile(split, backend=backend, options={"products": "cublaslt"})
    with torch.no_grad(), no_fallback():
        compiled(x, w)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = compiled(x, w)
        x.normal_()
        # what a call outside does at the same time has memory of its own
        graph.replay()
        other = compiled(x * 2, w)
        torch.cuda.synchronize()
        expected = split(x.double(), w.double())
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(other.double(), 2 * expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", interpreted_template.CASES)
def test_a_template_is_chosen_compiled_and_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a cached graph would leave no kernels in the trace
    monkeypatch.setenv("COILWORK_CACHE", "0")
    assert interpreted_template.wrong_with(interpreted_template.CASES[name], tmp_path, "cuda") == ""


@pytest.mark.parametrize("name", test_grouped_products.CASES)
def test_groups_are_multiplied_as_in_eager_mode(name: str) -> None:
    test_grouped_products.compare(name, "cuda")


def test_scaled_groups_are_the_librarys() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("torch scales groups on sm_90")
    torch.manual_seed(0)
    left = torch.randn(96, 64, device="cuda").to(torch.float8_e4m3fn)
    right = torch.randn(3, 48, 64, device="cuda").to(torch.float8_e4m3fn).transpose(1, 2)
    of_left, of_right = torch.rand(96, device="cuda"), torch.rand(3, 48, device="cuda")
    ends = torch.tensor([32, 32, 96], device="cuda", dtype=torch.int32)

    def function(*operands: Tensor) -> Tensor:
        a, b, first, second, at = operands
        made = torch._scaled_grouped_mm(a, b, first, second, offs=at, out_dtype=torch.bfloat16)
        return made.relu()

    given = (left, right, of_left, of_right, ends)
    torch._dynamo.reset()
    with torch.no_grad(), no_fallback():
        found = torch.compile(function, backend=backend)(*given)
    torch.testing.assert_close(found, function(*given))


PLAIN: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "a row": (functional.linear, ((1, 4096), (1000, 4096))),
    "a gated row": (
        lambda x, v, w: functional.silu(functional.linear(x, v)) * functional.linear(x, w),
        ((1, 2048), (1536, 2048), (1536, 2048)),
    ),
    "small ones": (torch.bmm, ((600, 32, 64), (600, 64, 48))),
    "added": (torch.baddbmm, ((64, 256, 256), (64, 256, 128), (64, 128, 256))),
    "weighed": (
        lambda c, x, y: torch.baddbmm(c, x, y, beta=0.5, alpha=2),
        ((64, 256, 256), (64, 256, 128), (64, 128, 256)),
    ),
    "added to a large one": (torch.addmm, ((2048, 2048), (2048, 2048), (2048, 2048))),
}


@pytest.mark.parametrize("name", PLAIN)
def test_products_that_nothing_follows(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    function, shapes = PLAIN[name]
    given = [(torch.randn(shape, device="cuda") * shape[-1] ** -0.25).bfloat16() for shape in shapes]
    compiled = torch.compile(function, backend=backend)
    with torch.no_grad(), no_fallback():
        exact = function(*(x.double() for x in given))
        found, eager = compiled(*given).double(), function(*given).double()
        assert torch.equal(found, compiled(*given).double())
    off, allowed = ((one - exact).norm() / exact.norm() for one in (found, eager))
    assert off <= 1.05 * allowed


def test_a_training_step_never_has_all_logits_in_memory() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    rows, inner, columns = 8192, 256, 40000
    hidden = torch.randn(rows, inner, device="cuda").bfloat16()
    weight = (torch.randn(columns, inner, device="cuda") / 8).bfloat16()
    labels = torch.randint(0, columns, (rows,), device="cuda")
    labels[::9] = -100

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(x, w).float(), labels)

    def step(call: Callable[[Tensor, Tensor], Tensor], *given: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in given]
        found = call(*leaves)
        # a factor that rounds
        return [found.detach(), *torch.autograd.grad(found, leaves, torch.full_like(found, 0.3))]

    def exactly(x: Tensor, w: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(x, w), labels)

    compiled = torch.compile(loss, backend=backend)
    with no_fallback():
        first = step(compiled, hidden, weight)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        again = step(compiled, hidden, weight)
        torch.cuda.synchronize()
    used = torch.cuda.max_memory_allocated() - before
    assert used < rows * columns, "half of the logits"
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    exact = step(exactly, hidden.double(), weight.double())
    eager = step(loss, hidden, weight)
    for found, wanted, theirs in zip(first, exact, eager, strict=True):
        off, allowed = ((one.double() - wanted).norm() / wanted.norm() for one in (found, theirs))
        assert off <= 1.05 * allowed + 1e-6
