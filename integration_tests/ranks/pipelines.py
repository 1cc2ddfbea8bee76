"""The decoder as stages of a pipeline, each compiled, in torch's schedules."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from integration_tests.ranks.training import Setting, Step, descend
from integration_tests.ranks.transformer import Decoder, Scale, loss_of


class Stage(nn.Module):
    """Some layers of a decoder; the first has its embedding, the last its head."""

    def __init__(self, scale: Scale, number: int, stages: int, *, checkpoints: bool) -> None:
        super().__init__()
        whole = Decoder(scale, checkpoints=checkpoints)
        share = -(-scale.layers // stages)
        self.tok_embeddings = whole.tok_embeddings if number == 0 else None
        self.layers = nn.ModuleList(list(whole.layers)[number * share : (number + 1) * share])
        self.norm = whole.norm if number == stages - 1 else None
        self.output = whole.output if number == stages - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for layer in self.layers:
            x = layer(x)
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x


def pipeline(setting: Setting, *, interleaved: bool = False, checkpoints: bool = False) -> Step:
    """Microbatches of one sequence; `interleaved`: two stages on each rank."""
    me = setting.me
    stages = 2 * me.ranks if interleaved else me.ranks
    numbers = range(me.rank, stages, me.ranks)
    made = []
    for number in numbers:
        torch.manual_seed(7)
        stage = Stage(setting.scale, number, stages, checkpoints=checkpoints)
        made.append(stage.to(device=me.device, dtype=setting.scale.dtype))
    parts = [
        PipelineStage(setting.compile(stage), number, stages, me.device)
        for stage, number in zip(made, numbers, strict=True)
    ]
    schedule: Any
    if interleaved:
        schedule = ScheduleInterleaved1F1B(parts, setting.scale.batch, loss_fn=loss_of)
    else:
        schedule = Schedule1F1B(parts[0], setting.scale.batch, loss_fn=loss_of)
    optimizer = descend(parameter for stage in made for parameter in stage.parameters())
    is_last = stages - 1 in numbers

    def step(number: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        tokens, targets = setting.batch(number, own=False)
        losses: list[Tensor] = []
        schedule.step(*([tokens] if me.rank == 0 else []), **({"target": targets, "losses": losses} if is_last
                                                              else {}))  # fmt: skip
        optimizer.step()
        loss = torch.stack(losses).mean().detach() if is_last else torch.zeros((), device=me.device)
        loss = loss.double()
        dist.all_reduce(loss)
        return loss

    return step
