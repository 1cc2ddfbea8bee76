"""After `pip install coilwork queued-device`: a model trains on the device, compiled. Nothing is imported but
torch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

STEPS = 6


class Reader(torch.nn.Module):
    """Says which of five kinds a short text is of."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = torch.nn.Embedding(50, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.wide = torch.nn.Linear(32, 64)
        self.kinds = torch.nn.Linear(64, 5)

    def forward(self, text: Tensor) -> Tensor:
        hidden = F.gelu(self.wide(self.norm(self.letters(text))))
        return self.kinds((hidden.softmax(1) * hidden).sum(1))


def train(
    model: Callable[[Tensor], Tensor], parameters: list[Tensor], text: Tensor, kinds: Tensor
) -> list[float]:
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(text), kinds)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pick(table: Tensor, index: Tensor) -> Tensor:
    return table[index] * 2


def multiply(a: Tensor, b: Tensor) -> Tensor:
    return (a.exp() @ b).tanh()


def climb(rungs: list[Tensor]) -> None:
    """Several launches that find all they use where it was in the last call."""
    for rung in rungs:
        rung.tanh_().add_(1)


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Work on two devices."""
    return (x.sin() + x).cumsum(0), (y.to("cpu").exp() - 1).tanh()


def main() -> None:
    torch.manual_seed(0)
    eager = Reader()
    text, kinds = torch.randint(0, 50, (16, 9)), torch.randint(0, 5, (16,))
    model = copy.deepcopy(eager).to("queued")
    compiled = torch.compile(model, backend="coilwork")

    with torch.no_grad():
        result, expected = compiled(text.to("queued")), eager(text)
    print("on", result.device, "close:", torch.allclose(result.cpu(), expected, atol=1e-5))

    before = torch.queued.count_launches()
    losses = train(compiled, list(model.parameters()), text.to("queued"), kinds.to("queued"))
    wanted = train(eager, list(eager.parameters()), text, kinds)
    launches = torch.queued.count_launches() - before
    print(
        "trains:",
        losses[-1] < losses[0],
        "as eager does:",
        torch.allclose(torch.tensor(losses), torch.tensor(wanted), rtol=1e-4),
    )
    print("launches per step:", launches // STEPS > 4)

    multiplied = torch.queued.count_products()
    a, b = torch.rand(7, 33), torch.rand(33, 5)
    found = torch.compile(multiply, backend="coilwork")(a.to("queued"), b.to("queued"))
    calls = torch.queued.count_products() - multiplied
    print("by its own library:", calls, torch.allclose(found.cpu(), multiply(a, b), atol=1e-5))

    ladder = torch.compile(climb, backend="coilwork")
    rungs = [torch.rand(5 + k) for k in range(6)]
    there, replays = [rung.to("queued") for rung in rungs], torch.queued.count_replays()
    for _ in range(6):
        ladder(there)
        climb(rungs)
    close = [torch.allclose(a.cpu(), b, atol=1e-5) for a, b in zip(there, rungs, strict=True)]
    print("calls as one piece of work:", torch.queued.count_replays() - replays, all(close))

    stream = torch.Stream(device="queued")
    with stream, torch.no_grad():
        beside = compiled(text.to("queued"))
        done = stream.record_event()
    torch.accelerator.current_stream().wait_event(done)
    torch.accelerator.synchronize()
    print("on a stream of its own:", torch.allclose(beside.cpu(), eager(text), atol=1e-3))

    picked = torch.compile(pick, backend="coilwork")
    table = torch.arange(8.0, device="queued")
    print("picked:", picked(table, torch.tensor([3, 1], device="queued")).tolist())
    try:
        picked(table, torch.tensor([3, 9], device="queued")).tolist()
    except IndexError as error:
        print("IndexError:", error)

    x, y = torch.rand(33), torch.rand(5, 7)
    found = torch.compile(mixed, backend="coilwork")(x.to("queued"), y.to("queued"))
    same = all(torch.allclose(a.cpu(), b, atol=1e-5) for a, b in zip(found, mixed(x, y), strict=True))
    print("two devices:", [str(one.device) for one in found], same)


if __name__ == "__main__":
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        main()
    print("fallbacks:", [str(w.message) for w in caught if w.category.__module__.startswith("coilwork")])
