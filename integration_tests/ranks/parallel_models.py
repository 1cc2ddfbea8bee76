"""The decoder by tensor parallelism, sequence parallelism, FSDP2 and DDP, as torch documents each."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from integration_tests.ranks.training import Setting, Step, average, descend, make_step
from integration_tests.ranks.transformer import Decoder, Scale, loss_of


def mesh_of(setting: Setting) -> DeviceMesh:
    """All ranks in a row."""
    return init_device_mesh(setting.me.device.type, (setting.me.ranks,))


# ---- tensor parallelism ----


def _split(model: nn.Module, mesh: DeviceMesh) -> None:
    plan: dict[str, Any] = {}
    for name in ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1"):
        plan[f"layers.*.{name}"] = ColwiseParallel()
    for name in ("attention.wo", "feed_forward.w2"):
        plan[f"layers.*.{name}"] = RowwiseParallel()
    plan["output"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, plan)


def _split_with_sequence(model: nn.Module, mesh: DeviceMesh) -> None:
    """Between its products, each rank has a part of every sequence."""
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan: dict[str, Any] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for name in ("attention_norm", "ffn_norm"):
        plan[f"layers.*.{name}"] = SequenceParallel()
    for name in ("attention", "feed_forward"):
        plan[f"layers.*.{name}"] = gather
    for name in ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1"):
        plan[f"layers.*.{name}"] = ColwiseParallel()
    for name in ("attention.wo", "feed_forward.w2"):
        plan[f"layers.*.{name}"] = RowwiseParallel(output_layouts=Shard(1))
    parallelize_module(model, mesh, plan)


def tensor_parallel(setting: Setting, *, checkpoints: bool = False) -> Step:
    model = setting.module(partial(Decoder, checkpoints=checkpoints))
    _split(model, mesh_of(setting))
    return make_step(setting, model, own=False)


def sequence_parallel(setting: Setting, *, checkpoints: bool = False) -> Step:
    model = setting.module(partial(Decoder, checkpoints=checkpoints))
    _split_with_sequence(model, mesh_of(setting))
    return make_step(setting, model, own=False)


def tensor_parallel_inference(setting: Setting) -> Step:
    """No step of training: the loss of each batch."""
    model = setting.module(Decoder)
    _split(model, mesh_of(setting))

    def whole(tokens: Tensor, targets: Tensor) -> Tensor:
        return loss_of(model(tokens), targets)

    forward = setting.compile(whole)

    def step(number: int) -> Tensor:
        with torch.no_grad():
            loss: Tensor = forward(*setting.batch(number, own=False))
        return loss

    return step


# ---- FSDP2 ----


def fsdp(
    setting: Setting,
    *,
    reshards: bool = True,
    mixed: bool = False,
    accumulates: int = 1,
    checkpoints: bool = False,
) -> Step:
    """Each block is compiled and gathers its parameters by itself; with `mixed` it computes in bf16.

    With `accumulates`, gradients of so many batches are summed on each rank before ranks exchange them.
    """
    model = setting.module(partial(Decoder, checkpoints=checkpoints))
    half = mixed and not setting.exact
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32 if half else None
    )
    shard = partial(fully_shard, mesh=mesh_of(setting), mp_policy=policy, reshard_after_forward=reshards)
    for name, layer in model.layers.named_children():
        compiled = setting.compile(layer)
        model.layers.register_module(name, compiled)
        shard(compiled)
    shard(model)
    optimizer = descend(model.parameters())
    loss_function = setting.compile(loss_of)

    def step(number: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=setting.me.device, dtype=torch.float64)
        for part in range(accumulates):
            model.set_requires_gradient_sync(part == accumulates - 1)
            tokens, targets = setting.batch(number * accumulates + part, own=True)
            loss = loss_function(model(tokens), targets) / accumulates
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return average(total, setting.me.ranks)

    return step


# ---- DDP ----


class WithUnused(nn.Module):
    """A decoder with parameters that no batch of odd number uses."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.decoder = Decoder(scale)
        self.extra = nn.Linear(scale.width, scale.width)

    def forward(self, tokens: Tensor, uses_extra: bool = False) -> Tensor:
        x = self.decoder.tok_embeddings(tokens)
        for layer in self.decoder.layers:
            x = layer(x)
        if uses_extra:
            x = x + self.extra(x)
        logits: Tensor = self.decoder.output(self.decoder.norm(x))
        return logits


def ddp(
    setting: Setting,
    *,
    static_graph: bool = False,
    unsynchronized: bool = False,
    unused: bool = False,
    checkpoints: bool = False,
) -> Step:
    """Buckets of about a block. `unsynchronized`: ranks exchange gradients of every second batch, which
    contain those of the batch before."""
    module = setting.module(WithUnused if unused else partial(Decoder, checkpoints=checkpoints))
    size = sum(p.numel() * p.element_size() for p in module.parameters()) / 2**20
    bucket = size / (1 + setting.scale.layers)
    # a small model would be one bucket otherwise
    dist._DEFAULT_FIRST_BUCKET_BYTES = min(dist._DEFAULT_FIRST_BUCKET_BYTES, int(bucket * 2**20))
    model = DistributedDataParallel(
        module,
        bucket_cap_mb=bucket,
        static_graph=static_graph,
        find_unused_parameters=unused,
    )
    forward = setting.compile(model)
    optimizer = descend(module.parameters())

    def step(number: int) -> Tensor:
        holds_back = unsynchronized and number % 2 == 0
        tokens, targets = setting.batch(number, own=True)
        extra = (number % 2 == 0,) if unused else ()
        with model.no_sync() if holds_back else nullcontext():
            loss = loss_of(forward(tokens, *extra), targets)
            loss.backward()
        if not holds_back:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return average(loss, setting.me.ranks)

    return step
