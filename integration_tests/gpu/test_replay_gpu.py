"""Calls that are alike go to the driver as graphs: results are eager's whatever changes between calls, and
memory is as without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from coilwork.backend import backend
from coilwork_runtime import NativeProgram, load_native
from coilwork_runtime.executor import choice
from integration_tests.model_checks import no_fallback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
WARM = 10  # calls: kernels settle, then work is listened to


@pytest.fixture
def programs() -> Iterator[list[NativeProgram]]:
    """The programs that are compiled meanwhile."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    found: list[NativeProgram] = []

    def remembering(data: bytes, **rest: Any) -> NativeProgram:
        found.append(load_native(data, **rest))
        return found[-1]

    with no_fallback(), mock.patch.object(choice, "load_native", remembering):
        yield found


def graphs(programs: list[NativeProgram]) -> int:
    return sum(program.counters()["graphs"] for program in programs)


def compiled(function: Any, *, dynamic: bool = False, **options: Any) -> Any:
    return torch.compile(
        function, backend=backend, dynamic=dynamic, options={"executor": "native", "cache": False, **options}
    )


def blocks(depth: int = 6, width: int = 256) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    return nn.Sequential(*layers).to("cuda", torch.bfloat16)


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0.03, atol=0.03)


@torch.no_grad()
def test_inputs_in_place_and_others(programs: list[NativeProgram]) -> None:
    model = blocks()
    call = compiled(model)
    x = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
    for _ in range(WARM):
        same(call(x), model(x))
    before = graphs(programs)
    for _ in range(4):
        x.normal_()
        same(call(x), model(x))
    assert graphs(programs) >= before + 4
    kept = [call(torch.randn_like(x)) for _ in range(4)]
    copies = [value.clone() for value in kept]
    for _ in range(3 * WARM):
        fresh = torch.randn_like(x)
        same(call(fresh), model(fresh))
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    for _ in range(WARM):
        same(call(x), model(x))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("last", [256, 16384])
def test_no_more_memory_than_without(programs: list[NativeProgram], dtype: torch.dtype, last: int) -> None:
    """`last`: columns of the result; where they are many, most memory is there when it is made, and nothing
    may wait then.
    """
    model = nn.Sequential(blocks(), nn.Linear(256, last)).to("cuda", dtype)
    x = torch.randn(4096, 256, device="cuda", dtype=dtype)
    peaks = []
    for replay in (True, False):
        torch._dynamo.reset()
        call = compiled(model, replay=replay)
        for _ in range(2 * WARM):
            found = call(x)  # the last result is there until then
        del found
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = call(x)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        same(found, model(x))
        del found
    # what waits to be freed
    assert peaks[0] <= peaks[1] + (1 << 20)
    assert programs[0].counters()["graphs"] and not programs[1].counters()["graphs"]


@torch.no_grad()
def test_a_call_that_torch_does_splits_graphs(programs: list[NativeProgram]) -> None:
    first, second = blocks(2), blocks(2)

    def model(x: Tensor) -> Tensor:
        y = first(x)
        eye = torch.eye(x.shape[0], device="cuda")
        inverse = torch.linalg.inv(y.float() @ y.float().t() * 1e-4 + eye)
        return second((inverse @ y.float()).to(x.dtype))

    x = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
    call = compiled(model)
    for _ in range(2 * WARM):
        same(call(x), model(x))
    before = graphs(programs)
    for _ in range(4):
        same(call(x), model(x))
    assert graphs(programs) >= before + 8


@torch.no_grad()
def test_replayed_convolutions_compute_what_calls_do(programs: list[NativeProgram]) -> None:
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers).to("cuda", torch.bfloat16, memory_format=torch.channels_last).eval()
    x = torch.randn(1, 64, 28, 28, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    call = compiled(model)
    for _ in range(3 * WARM):
        x.normal_()
        same(call(x), model(x))
    assert graphs(programs)
    assert sum(program.counters()["refused_convolutions"] for program in programs) == 0


@torch.no_grad()
def test_sizes_that_change(programs: list[NativeProgram]) -> None:
    model = blocks(depth=3)
    call = compiled(model, dynamic=True)
    for rows in [*(4,) * 12, 9, 4, 9, 4, 5, 6, 7, 8, 9, 10, *(20,) * 16]:
        x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16)
        same(call(x), model(x))
    assert graphs(programs)


@torch.no_grad()
def test_streams_and_threads(programs: list[NativeProgram]) -> None:
    model = blocks()
    call = compiled(model)
    x = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
    for _ in range(WARM):
        same(call(x), model(x))
    wrong: list[float] = []

    def work(own_stream: bool) -> None:
        stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(50):
                mine = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
                difference = (call(mine) - model(mine)).abs().max().item()
                if not difference < 0.05:
                    wrong.append(difference)

    threads = [threading.Thread(target=work, args=(k % 2 == 0,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.no_grad()
def test_within_a_graph_of_the_users(programs: list[NativeProgram]) -> None:
    model = blocks()
    call = compiled(model)
    x = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
    for _ in range(WARM):
        same(call(x), model(x))
    assert graphs(programs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        same(found, model(x))
    same(call(x), model(x))


@torch.no_grad()
def test_a_graph_of_the_users_recorded_elsewhere(programs: list[NativeProgram]) -> None:
    """Graphs of ours may be made, and given up, while another thread records one of its own."""
    model = blocks()
    x = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
    other = torch.randn(64, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    call = compiled(model)
    same(call(x), model(x))
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        doubled = other * 2

        def work() -> None:
            with torch.no_grad():
                for _ in range(2 * WARM):
                    call(x)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    graph.replay()
    assert torch.equal(doubled, other * 2)
    same(call(x), model(x))


def test_replayed_training_loses_what_eager_does(programs: list[NativeProgram]) -> None:
    def trained(make: Callable[[nn.Module], Any]) -> list[Tensor]:
        torch.manual_seed(1)
        model = blocks(depth=3).float()
        call = make(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3 * WARM):
            x = torch.randn(16, 256, device="cuda")
            loss = call(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    for found, wanted in zip(trained(compiled), trained(lambda model: model), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert graphs(programs)
