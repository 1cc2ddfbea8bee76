"""Training on the CPU, beside eager: whatever stands around a compiled model or in it, parameters and buffers
end as eager's do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from coilwork.backend import backend

STEPS = 3
pytestmark = pytest.mark.usefixtures("own_caches")


def compiled(function: Any, **settings: Any) -> Any:
    return torch.compile(function, backend=backend, options={"strict": True, "verify": True, **settings})


class Model(nn.Module):
    """Two layers and a norm with running statistics; the first activation is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.norm, self.last = nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        z = functional.gelu(self.second(y)) * y + y
        found: Tensor = self.last(self.norm(z))
        return found


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(10, 6, generator=generator), torch.randint(0, 4, (10,), generator=generator)


Train = Callable[[nn.Module, Callable[[Tensor], Tensor]], None]


def agree(train: Train, *, rtol: float = 1e-4, atol: float = 1e-5, **settings: Any) -> None:
    """`train(model, call)`, `call` being the model or the compiled model, leaves equal parameters, buffers
    and gradients.
    """
    eager = Model()
    ours = copy.deepcopy(eager)
    torch.manual_seed(1)
    train(eager, eager)
    torch.manual_seed(1)
    train(ours, compiled(ours, **settings))
    for found, wanted in ((ours.state_dict(), eager.state_dict()), (_gradients(ours), _gradients(eager))):
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


def _gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: value.grad for name, value in model.named_parameters()}


# Optimizers: eager ones behind a compiled model, and compiled ones

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "sgd, foreach, nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw, rate in a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "adamw, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01, foreach=False),
    "adafactor, foreach": lambda p: torch.optim.Adafactor(p, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps_agree(name: str) -> None:
    """Steps are compiled, too, and a schedule changes the rate between them."""

    def run(step: Callable[[], None], optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for number in range(STEPS):
            generator = torch.Generator().manual_seed(number)
            for value in model.parameters():
                value.grad = torch.randn(value.shape, generator=generator)
            step()
            schedule.step()

    eager = Model()
    ours = copy.deepcopy(eager)
    for model in (eager, ours):
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()

        try:
            run(step if model is eager else compiled(step), optimizer, model)
        except AssertionError:
            # torch 2.12 captures no Adafactor over lists: it asks for the type of a group that has none then
            torch._dynamo.reset()
            with pytest.raises(AssertionError):
                run(torch.compile(step, backend="eager"), optimizer, model)
            return
    torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_with_a_grad_scaler_agrees(dtype: torch.dtype) -> None:
    def train(model: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for number in range(STEPS):
            x, wanted = batch(number)
            with torch.autocast("cpu", dtype):
                loss = functional.cross_entropy(call(x), wanted)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    agree(train, rtol=0.1, atol=0.03, numerics="eager")


def test_autocast_inside_the_function_agrees() -> None:
    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            product = x @ weight
        return product, (product.float().sum() * weight).sum()

    found = []
    for call in (function, compiled(function)):
        x, weight = (value.requires_grad_() for value in (batch(0)[0], batch(1)[0].t().contiguous()))
        product, total = call(x, weight)
        total.backward()
        found.append((product.detach(), weight.grad))
        assert product.dtype is torch.bfloat16
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=2e-2)


# What happens between forward and backward


def plain(model: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        x, wanted = batch(number)
        optimizer.zero_grad()
        functional.cross_entropy(call(x), wanted).backward()
        optimizer.step()


def test_a_model_trains_as_in_eager() -> None:
    agree(plain)


def test_gradients_accumulate() -> None:
    def train(model: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        for number in range(STEPS):
            x, wanted = batch(number)
            functional.cross_entropy(call(x), wanted).backward()

    agree(train)


def test_a_retained_graph_has_a_second_backward() -> None:
    def train(model: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        x, wanted = batch(0)
        loss = functional.cross_entropy(call(x), wanted)
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()

    with torch._functorch.config.patch(donated_buffer=False):
        agree(train)


def test_saved_tensors_are_freed_as_in_eager() -> None:
    model = Model()
    loss = compiled(model)(batch(0)[0]).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_backwards_may_come_after_several_forwards() -> None:
    def train(model: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        losses = [functional.cross_entropy(call(batch(n)[0]), batch(n)[1]) for n in range(STEPS)]
        for loss in reversed(losses):
            loss.backward()

    agree(train)


def test_hooks_on_parameters_run() -> None:
    def train(model: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        assert isinstance(model, Model)
        seen: list[Tensor] = []
        handles = [
            model.first.weight.register_hook(lambda gradient: gradient * 2),
            model.last.bias.register_post_accumulate_grad_hook(lambda value: seen.append(value.grad.clone())),
            model.second.register_forward_hook(lambda module, given, result: result * 0.5),
            model.norm.register_full_backward_hook(lambda module, given, got: (given[0] * 3,)),
        ]
        plain(model, call)
        assert len(seen) == STEPS
        for handle in handles:
            handle.remove()

    agree(train)


def test_hooks_on_results_run() -> None:
    def train(model: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        result = call(batch(0)[0])
        result.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        functional.cross_entropy(result, batch(0)[1]).backward()

    agree(train)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_checkpoints_recompute_the_same_numbers(reentrant: bool, within: bool) -> None:
    """Around the compiled model, and in it; what is computed again draws the same numbers."""

    class Checkpointed(Model):
        def forward(self, x: Tensor) -> Tensor:
            def part(y: Tensor) -> Tensor:
                return functional.dropout(functional.gelu(self.second(y)), 0.5) * y

            y = torch.tanh(self.first(x))
            z = checkpoint(part, y, use_reentrant=reentrant) if within else part(y)
            found: Tensor = self.last(z)
            return found

    model = Checkpointed()
    ours = copy.deepcopy(model)
    # With `eager`, numbers are drawn in eager's order.
    call = compiled(ours, random="eager")
    for one, run in ((model, model), (ours, call)):
        torch.manual_seed(5)
        for number in range(STEPS):
            x, wanted = batch(number)
            x.requires_grad_()
            result = run(x) if within else checkpoint(run, x, use_reentrant=reentrant)
            functional.cross_entropy(result, wanted).backward()
        assert one.first.weight.grad is not None
    torch.testing.assert_close(_gradients(ours), _gradients(model), rtol=1e-4, atol=1e-5)


def test_a_second_derivative_is_refused() -> None:
    """AOTAutograd cannot take it, and says so: no silent zeros."""

    def function(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    x = torch.rand(5, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(function)(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


# Graphs


def test_graph_breaks_agree() -> None:
    class Broken(Model):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.tanh(self.first(x))
            torch._dynamo.graph_break()
            z = self.second(y) * y
            if z.sum() > 0:
                z = z * 2
            return self.last(z + y)

    eager = Broken()
    ours = copy.deepcopy(eager)
    plain(eager, eager)
    plain(ours, compiled(ours))
    torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)


def test_a_model_may_have_several_graphs() -> None:
    """Training, evaluation, another batch size, frozen parameters: each a graph, and each step as
    in eager.
    """

    def train(model: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        plain(model, call)
        model.eval()
        with torch.no_grad():
            seen = call(batch(7)[0])
        model.train()
        (call(batch(8)[0][:7]).sum() + seen.sum()).backward()
        for value in list(model.parameters())[:4]:
            value.requires_grad_(False)
        plain(model, call)
        with torch.no_grad():
            call(batch(9)[0])

    agree(train)


def test_a_whole_training_step_may_be_compiled() -> None:
    eager = Model()
    ours = copy.deepcopy(eager)

    def make(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, wanted: Tensor) -> Tensor:
            loss = functional.cross_entropy(model(x), wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    steps = make(eager), compiled(make(ours))
    for number in range(STEPS):
        wanted, found = (step(*batch(number)) for step in steps)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)


def test_any_of_the_inputs_may_need_gradients() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.exp() * y).cumsum(-1)

    call = compiled(function)
    for wanted in ((True, False), (False, True), (False, False), (True, True)):
        found = []
        for run in (function, call):
            leaves = [batch(n)[0].requires_grad_(w) for n, w in enumerate(wanted)]
            result = run(*leaves)
            if any(wanted):
                result.square().sum().backward()
            found.append((result.detach(), [leaf.grad for leaf in leaves]))
        torch.testing.assert_close(found[1], found[0])


EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin(1),
    "max": lambda x: x.max(),
    "norm": lambda x: x.norm(float("inf"), 0),
    "equal": lambda x: (x * (x == x.amax(0))).sum(1),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("shape", [(3, 4), (37, 33), (700, 300), (999, 60)], ids=str)
def test_gradients_of_extremes_go_to_the_forward_elements(shape: tuple[int, int], name: str) -> None:
    """However often a function is computed, and in whichever loop, what equals its extreme in one place does
    in all.
    """

    def function(x: Tensor) -> Tensor:
        return EXTREMES[name](torch.log(x.abs() + 0.5)) + EXTREMES[name](torch.tanh(x))

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = []
    for call in (function, compiled(function)):
        leaf = x.clone().requires_grad_()
        result = call(leaf)
        result.sum().backward()
        found.append((result.detach(), leaf.grad))
    torch.testing.assert_close(found[1], found[0])
