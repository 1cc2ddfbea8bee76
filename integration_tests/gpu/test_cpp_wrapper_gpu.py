"""Programs in C++ on a GPU: to the bit what the native executor computes, from kernels that Python binds and
from kernels that a saved library brings.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coilwork.backend import backend
from coilwork_cpp_wrapper import CppArtifact, CppWrapper, load_cpp
from integration_tests.model_checks import no_fallback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("own_caches"),
]
# of ATen's products and convolutions each driver calls the same
ALIKE: Final = {"products": "aten", "convolutions": "aten", "strict": True}


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def scatter(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(100, device=x.device).index_add(0, index, x) * 2


def convolve(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1).relu().mean((2, 3))


def choose(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() + 1, (x,))


def count_down(n: Tensor, x: Tensor) -> Any:
    return torch.while_loop(lambda k, y: k > 0, lambda k, y: (k - 1, y * 2 + 1), (n, x))


def overwrite(x: Tensor) -> Tensor:
    x.mul_(0.5).add_(1)
    return x.t().contiguous()


def mix_devices(x: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2 + 1, host.cumsum(0) * 3


Inputs = Sequence[Callable[[], tuple[Tensor, ...]]]
CASES: Final[dict[str, tuple[Callable[..., Any], Inputs]]] = {
    "pointwise": (lambda x, y: (x * 2 + y).sigmoid(), [lambda: (rand(1 << 20), rand(1 << 20))] * 3),
    "softmax": (lambda x: torch.softmax(x, -1), [lambda: (rand(128, 3000),)] * 3),
    "sort": (lambda x: torch.sort(x, dim=-1), [lambda: (rand(64, 1000),)] * 3),
    "scan": (lambda x: torch.cumsum(x, 0), [lambda: (rand(1_000_003),)] * 3),
    "scatter": (scatter, [lambda: (rand(5000), torch.randint(0, 100, (5000,), device="cuda"))] * 3),
    "product": (
        lambda x, w: F.gelu(x @ w),
        [lambda: (rand(64, 256, dtype=torch.bfloat16), rand(256, 512, dtype=torch.bfloat16))] * 3,
    ),
    # a program without a kernel
    "calls": (lambda x, w: x @ w @ w, [lambda: (rand(64, 64), rand(64, 64))] * 3),
    "convolution": (convolve, [lambda: (rand(2, 8, 16, 16), rand(4, 8, 3, 3))] * 3),
    "dropout": (lambda x: F.dropout(x, 0.3), [lambda: (rand(1000, 33),)] * 3),
    "sizes": (
        lambda x, w: torch.softmax(x @ w, -1).cumsum(0),
        [lambda n=n: (rand(n, 32), rand(32, 48)) for n in (5, 64, 100, 5)],
    ),
    "cond": (
        choose,
        [lambda: (torch.ones(60, device="cuda"),), lambda: (-torch.ones(60, device="cuda"),)] * 2,
    ),
    "while": (count_down, [lambda: (torch.tensor(3, device="cuda"), rand(50))] * 3),
    "update": (overwrite, [lambda: (rand(40, 50),)] * 3),
    "devices": (mix_devices, [lambda: (rand(100), torch.randn(50))] * 3),
}


@pytest.fixture
def artifacts() -> Iterator[list[CppArtifact]]:
    """The programs in C++ that are made meanwhile."""
    found: list[CppArtifact] = []
    made = CppWrapper.restore

    def remember(*given: Any) -> CppArtifact:
        found.append(made(*given))
        return found[-1]

    with no_fallback(), mock.patch.object(CppWrapper, "restore", remember):
        yield found


def run(function: Callable[..., Any], inputs: Sequence[tuple[Tensor, ...]], **options: Any) -> list[Tensor]:
    """Results, and inputs afterwards."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    call = torch.compile(function, backend=backend, options={**ALIKE, **options}, dynamic=None)
    found: list[Tensor] = []
    for given in inputs:
        mine = [one.clone() for one in given]
        result = call(*mine)
        found += [*(result if isinstance(result, tuple) else (result,)), *mine]
    return found


def assert_same_bits(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.device == other.device and one.stride() == other.stride()
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_results_are_the_native_executors(name: str, artifacts: list[CppArtifact]) -> None:
    function, makers = CASES[name]
    inputs = [make() for make in makers]
    native = run(function, inputs, wrapper="native")
    assert not artifacts
    assert_same_bits(run(function, inputs, wrapper="cpp"), native)
    assert artifacts
    # of the cache
    count = len(artifacts)
    assert_same_bits(run(function, inputs, wrapper="cpp"), native)
    assert len(artifacts) > count


@torch.no_grad()
def test_a_saved_library_brings_its_kernels(artifacts: list[CppArtifact], tmp_path: Path) -> None:
    x, y = rand(100_003), rand(64, 1000)
    index = torch.randint(0, 100, (100_003,), device="cuda")
    function = lambda x, y, index: (x.cumsum(0), torch.softmax(y, -1), scatter(x, index))  # noqa: E731
    wanted = run(function, [(x, y, index)] * 2, wrapper="cpp", cache=False)[:3]
    artifacts[-1].save(tmp_path / "saved")
    loaded = load_cpp(tmp_path / "saved")
    ports = [port.type for port in loaded.program.inputs]
    given = [{"f32[100003]": x, "f32[64, 1000]": y}.get(one, index) for one in ports]
    assert_same_bits(loaded([*given]), wanted)


def test_a_transformer_trains_alike(artifacts: list[CppArtifact]) -> None:
    torch.manual_seed(0)
    first = nn.Sequential(
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True), nn.Linear(64, 10)
    ).cuda()
    batches = [(rand(3, 20, 64), torch.randint(0, 10, (60,), device="cuda")) for _ in range(4)]
    trained: dict[str, list[Tensor]] = {}
    for wrapper in ("native", "cpp"):
        torch._dynamo.reset()
        torch.manual_seed(1)
        model = copy.deepcopy(first)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = torch.compile(model, backend=backend, options={**ALIKE, "wrapper": wrapper})
        for x, labels in batches:
            F.cross_entropy(step(x).flatten(0, 1), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        trained[wrapper] = [one.detach() for one in model.parameters()]
    assert len(artifacts) >= 2
    assert_same_bits(trained["cpp"], trained["native"])
    assert not torch.equal(trained["cpp"][0], next(first.parameters()))


@torch.no_grad()
def test_each_thread_has_its_stream(artifacts: list[CppArtifact]) -> None:
    function = lambda x: torch.softmax(x, -1).cumsum(-1)  # noqa: E731
    call = torch.compile(function, backend=backend, options={**ALIKE, "wrapper": "cpp"})
    x = rand(64, 3000)
    wanted = call(x)
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                # behind a long wait on this stream, what is not put on it reads zeros
                torch.cuda._sleep(100_000)
                mine = torch.zeros_like(x).copy_(x)
                if not torch.equal(call(mine), wanted):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and artifacts


@torch.no_grad()
def test_failures_are_torchs() -> None:
    call = torch.compile(
        lambda x, w: (x + 1) @ w, backend=backend, options={**ALIKE, "wrapper": "cpp"}, dynamic=False
    )
    x, w = rand(8, 8), rand(8, 8)
    torch.testing.assert_close(call(x, w), (x + 1) @ w)
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        call(x, w)
    assert torch.cuda.memory_allocated() == before
