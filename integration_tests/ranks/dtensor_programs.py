"""A model of DTensors whose parts are uneven, and random programs of DTensors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from integration_tests.ranks.parallel_models import mesh_of
from integration_tests.ranks.training import Setting, Step, descend


def uneven_dtensors(setting: Setting) -> Step:
    """Two layers between sharded, partial and whole values; no size is a multiple of the number of ranks."""
    me, mesh, scale = setting.me, mesh_of(setting), setting.scale
    rows, width, hidden = scale.batch * scale.length + 1, scale.width + 1, 2 * scale.width + 1
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64) * shape[0] ** -0.5
        return drawn.to(device=me.device, dtype=scale.dtype)

    def parameter(value: Tensor, placement: Placement) -> Tensor:
        return distribute_tensor(value, mesh, [placement]).detach().requires_grad_()

    w1, b1 = parameter(draw(width, hidden), Shard(1)), parameter(draw(hidden), Shard(0))
    w2, gain = parameter(draw(hidden, width), Shard(0)), parameter(draw(width) + 1, Replicate())
    inputs = [(draw(rows, width) * rows**0.5, draw(rows, width)) for _ in range(2)]

    def function(x: Tensor, target: Tensor) -> Tensor:
        x = x.redistribute(mesh, [Replicate()])
        h = F.gelu(x @ w1 + b1, approximate="tanh")  # Shard(1)
        y = (h @ w2).redistribute(mesh, [Shard(0)])  # Partial, then rows
        y = F.rms_norm(y + x.redistribute(mesh, [Shard(0)]), (width,)) * gain
        y = y.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Shard(0)])
        return ((y - target) ** 2).mean().full_tensor()

    compiled = setting.compile(function)
    optimizer = descend([w1, b1, w2, gain])
    data = [tuple(distribute_tensor(one, mesh, [Shard(0)]) for one in pair) for pair in inputs]

    def step(number: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = compiled(*data[number % len(data)])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# ---- random programs ----


UNARY = ("torch.tanh({})", "{} * 0.5", "{}.relu()", "-{}", "{} + 1", "{}.sin()")
BINARY = ("{} + {}", "{} * {}", "{} - {}")
PLACEMENTS = ("Replicate()", "Shard(0)", "Shard(1)")


def draw_program(seed: int) -> str:
    """The text of `f(x, y)`, of DTensors of one square shape, which returns a scalar on each rank."""
    rng = random.Random(seed)
    lines, names = list[str](), ["x", "y"]

    def emit(text: str) -> None:
        names.append(f"v{len(names)}")
        lines.append(f"{names[-1]} = {text}")

    for _ in range(rng.randrange(4, 10)):
        kind = rng.randrange(6)
        one, other = rng.choice(names[-3:]), rng.choice(names)
        if kind == 0:
            emit(rng.choice(UNARY).format(one))
        elif kind == 1:
            emit(rng.choice(BINARY).format(one, other))
        elif kind == 2:
            emit(f"{one} @ {other} * 0.2")
        elif kind == 3:
            emit(f"{one} - {one}.mean({rng.randrange(2)}, keepdim=True)")
        else:
            emit(f"{one}.redistribute(mesh, [{rng.choice(PLACEMENTS)}])")
    returned = f"return sum(v.sum().full_tensor() for v in ({', '.join(names[-3:])},))"
    return "def f(x, y):\n" + "".join(f"    {line}\n" for line in (*lines, returned))


def run_program(
    text: str, mesh: DeviceMesh, compile_function: Any, seed: int, dtype: torch.dtype
) -> Sequence[Tensor]:
    """Result and gradients (whole) of a program on numbers of `seed`."""
    scope: dict[str, Any] = {"torch": torch, "mesh": mesh, "Replicate": Replicate, "Shard": Shard}
    exec(compile(text, f"<dtensor program {seed}>", "exec"), scope)
    rng = random.Random(seed)
    size = rng.choice((1, 3, 5, 7, 8))
    generator = torch.Generator().manual_seed(seed)
    given = []
    for _ in range(2):
        whole = torch.randn(size, size, generator=generator, dtype=torch.float64)
        local = whole.to(device=mesh.device_type, dtype=dtype)
        placement: Placement = rng.choice((Replicate(), Shard(0), Shard(1), Partial()))
        if isinstance(placement, Partial):
            local = local / mesh.size()
            one = DTensor.from_local(local, mesh, [placement])
        else:
            one = distribute_tensor(local, mesh, [placement])
        given.append(one.detach().requires_grad_())
    result = compile_function(scope["f"])(*given)
    gradients = torch.autograd.grad(result, given, allow_unused=True)
    wholes = [one.full_tensor() for one in gradients if isinstance(one, DTensor)]
    return [result.detach(), *wholes]
