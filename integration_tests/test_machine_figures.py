"""Every figure of a machine is read while graphs are compiled for it, and a CPU reads its own alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks import planner
from benchmarks.memory_bound.case import Make, call_of
from benchmarks.memory_bound.cases import find_case
from benchmarks.planner import Planner
from coilwork.compile_options import CompileOptions
from coilwork_cpp import CppCodegen
from coilwork_ir.backend import Codegen
from coilwork_ir.machine import TUNING, MachineModel, read_entries
from coilwork_ir.target import TARGETS, Target
from coilwork_lowering import decompositions
from coilwork_lowering.aten_layouts import pad_products
from coilwork_lowering.joint.early_gradients import compute_gradients_early
from coilwork_lowering.joint.large_products import recompute_large_products
from coilwork_lowering.options import LayoutOptions, RewriteOptions
from coilwork_lowering.rewrites import choose_rewrites, clean_up_copy, pack_weights
from coilwork_lowering.rewrites.constant_folding import rewrite_captured
from coilwork_triton import TritonCodegen

BF16, F32, I8, I64 = torch.bfloat16, torch.float32, torch.int8, torch.int64

CASES = (
    "cross-entropy fwd+bwd 8192x50304",
    "sums around a kept axis 512x256x512",
    "layer norm fwd+bwd 131072x256",
    "RMS norm fwd+bwd 16384x4096",
    "RMS norm fwd+bwd 16384x4096, each size 3 less",
    "softmax 4096x8192, open sizes",
    "softmax 4096x8192, each size 3 less",
    "column sums 16384x4096, compiled for quarters",
    "cumsum of columns 8192x8192",
    "variances of channels 64x96x128x128 f16",
)
"""Of the memory-bound benchmarks, those that read most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A function, what it is called with, and who computes its products."""

    function: Callable[..., Any]
    inputs: Callable[[], tuple[Tensor, ...]]
    contractions: Literal["auto", "generated"] = "auto"


def empty(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    """Memory that nobody touches."""
    return torch.empty(shape, dtype=dtype)


def places(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=I64)


def standardize(x: Tensor) -> Tensor:
    off = x - x.mean(-1, keepdim=True)
    return off * (off.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def count(x: Tensor) -> Tensor:
    return torch.zeros(256, dtype=I64, device=x.device).index_add(0, x, torch.ones_like(x))


def embed_back(gradient: Tensor, ids: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.embedding_dense_backward(gradient, ids, 50257, -1, False)
    return result


def convolve_back(gradient: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a convolution of single channels."""
    sizes = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), x.shape[1])
    of_x, of_w, _ = torch.ops.aten.convolution_backward(gradient, x, w, *sizes, (True, True, False))
    return of_x, of_w


def train(x: Tensor) -> Tensor:
    loss = x.softmax(-1).square().sum()
    loss.backward()
    return loss.detach()


def spread(x: Tensor, rows: Tensor, to: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, to, x[rows].relu())


GPU_GRAPHS = (
    # rows of the result are no whole vectors
    Given(
        function=lambda x, w: x @ w.t(),
        inputs=lambda: (empty(8192, 768, dtype=BF16), empty(50257, 768, dtype=BF16)),
    ),
    # what follows a product is computed by its kernel: of one with a gate, of few rows, and of a batch
    Given(
        function=lambda x, w, v: (x @ w).relu() * (x @ v),
        inputs=lambda: (empty(8192, 640, dtype=BF16), *(empty(640, 2560, dtype=BF16) for _ in range(2))),
    ),
    Given(
        function=lambda x, w: (x @ w).relu() * 2,
        inputs=lambda: (empty(16, 4096, dtype=BF16), empty(4096, 4096, dtype=BF16)),
    ),
    Given(
        function=lambda x, w: (x @ w).relu(),
        inputs=lambda: (empty(8192, 1024, dtype=BF16), empty(1024, 4096, dtype=BF16)),
    ),
    Given(
        function=lambda x, w: (x @ w).relu(),
        inputs=lambda: (empty(4, 512, 512, dtype=BF16), empty(4, 512, 512, dtype=BF16)),
    ),
    # products that nothing follows: of one row, and of a batch of small ones; and a gate of few rows
    Given(
        function=lambda x, w: x @ w.t(),
        inputs=lambda: (empty(1, 4096, dtype=BF16), empty(4096, 4096, dtype=BF16)),
    ),
    Given(
        function=torch.bmm,
        inputs=lambda: (empty(1024, 64, 64, dtype=BF16), empty(1024, 64, 64, dtype=BF16)),
    ),
    Given(
        function=lambda x, w, v: F.silu(x @ w.t()) * (x @ v.t()),
        inputs=lambda: (empty(8, 4096, dtype=BF16), *(empty(14336, 4096, dtype=BF16) for _ in range(2))),
    ),
    # a library's attention, with a bias
    Given(
        function=lambda q, k, v, b: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, b, False)[
            0
        ],
        inputs=lambda: (*(empty(64, 4, 64, 32, dtype=BF16),) * 3, empty(64, 4, 64, 64, dtype=BF16)),
    ),
    Given(
        function=lambda x, w, s: x @ (w.to(BF16) * s),
        inputs=lambda: (empty(16, 4096, dtype=BF16), empty(4096, 4096, dtype=I8), empty(4096, dtype=BF16)),
    ),
    Given(
        function=lambda x, w: F.conv2d(x, w, padding=1, groups=32).relu(),
        inputs=lambda: (empty(128, 32, 112, 112, dtype=BF16), empty(32, 1, 3, 3, dtype=BF16)),
    ),
    Given(
        function=convolve_back,
        inputs=lambda: (
            *(empty(64, 32, 56, 56, dtype=BF16) for _ in range(2)),
            empty(32, 1, 3, 3, dtype=BF16),
        ),
    ),
    Given(
        function=lambda x: torch.var_mean(x, (0, 2, 3)), inputs=lambda: (empty(256, 2048, 7, 7, dtype=BF16),)
    ),
    Given(function=lambda x: torch.var_mean(x, 0), inputs=lambda: (empty(802816, 64, dtype=BF16),)),
    Given(
        function=lambda x: F.group_norm(x.float(), 32),
        inputs=lambda: (empty(32, 320, 8, 8, dtype=BF16).to(memory_format=torch.channels_last),),
    ),
    Given(
        function=lambda x, w: (x @ w.t()).logsumexp(-1), inputs=lambda: (empty(4096, 64), empty(20000, 64))
    ),
    Given(function=lambda x: x.amax((1, 3)), inputs=lambda: (empty(64, 256, 32, 96, dtype=BF16),)),
    Given(function=lambda x: x.cumsum(-1), inputs=lambda: (empty(64, 1 << 20),)),
    Given(function=lambda x: x.topk(8, -1), inputs=lambda: (empty(4096, 512),)),
    Given(function=lambda x: x.sort(0), inputs=lambda: (empty(32, 4096),)),
    Given(function=count, inputs=lambda: (places(1 << 22),)),
    Given(function=lambda x, i: x[i].softmax(0), inputs=lambda: (empty(4096, 2048, dtype=BF16), places(128))),
    Given(function=lambda t, i: t[i].sum(1), inputs=lambda: (empty(100000, 64), places(8192, 20))),
    # gradients of many tokens and of fewer: sorted in pieces
    Given(function=embed_back, inputs=lambda: (empty(16384, 768), places(16384))),
    Given(function=embed_back, inputs=lambda: (empty(4096, 768), places(4096))),
    # single elements, added up in fixed point
    Given(
        function=lambda x, i: torch.zeros(1 << 16, device=x.device).index_add(0, i, x),
        inputs=lambda: (empty(1 << 20), places(1 << 20)),
    ),
    Given(
        function=lambda x, i, y: x.scatter_reduce(0, i, y, "amax"),
        inputs=lambda: (empty(65536, 256), places(65536, 256), empty(65536, 256)),
    ),
    Given(function=torch.searchsorted, inputs=lambda: (empty(1000), empty(1 << 20))),
    Given(function=lambda *parts: torch.cat(parts, 1), inputs=lambda: (empty(512, 512),) * 10),
    Given(function=lambda x: x[0].add_(1), inputs=lambda: (empty(4096, 4096),)),
    Given(function=lambda x: x[:, ::2].exp(), inputs=lambda: (empty(4096, 8192),)),
    Given(function=lambda x, y: torch.cat([x * y, x + y], 1), inputs=lambda: (empty(4096, 1024),) * 2),
    Given(
        function=lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        inputs=lambda: (empty(8, 64, 64, 64),),
    ),
    # one launch
    Given(
        function=lambda *parts: [part.mul_(0.9) for part in parts],
        inputs=lambda: tuple(empty(1000 * n) for n in range(1, 9)),
    ),
    Given(
        function=lambda x, m: (x - m).permute(0, 2, 3, 1).contiguous(),
        inputs=lambda: (empty(64, 3, 512, 512), empty(3, 1, 1)),
    ),
)


def multiply_floats_of_8_bits(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x @ weight.to(x.dtype).t(), y @ weight.to(y.dtype).t()


CPU_GRAPHS = (
    Given(
        function=multiply_floats_of_8_bits,
        inputs=lambda: (
            empty(1, 512).bfloat16(),
            empty(1, 512),
            empty(256, 512).to(torch.float8_e4m3fn),
        ),
    ),
    Given(function=standardize, inputs=lambda: (empty(4096, 512),)),
    Given(
        function=lambda x, w: (x @ w.t()).logsumexp(-1), inputs=lambda: (empty(4096, 64), empty(20000, 64))
    ),
    Given(
        function=lambda x, y: torch.cat([x.t(), y.t()]), inputs=lambda: (empty(1024, 1024), empty(1024, 1024))
    ),
    Given(function=spread, inputs=lambda: (empty(1000, 8), places(5000), places(5000))),
    Given(function=lambda x: x.sum(0), inputs=lambda: (empty(1024, 16384),)),
    Given(function=torch.searchsorted, inputs=lambda: (empty(1000), empty(1 << 20))),
    Given(function=lambda x: x[0].add_(1), inputs=lambda: (empty(4096, 4096),)),
    Given(
        function=lambda x, y: torch.bmm(x.transpose(1, 2).exp(), y).transpose(0, 1).sin(),
        inputs=lambda: (empty(16, 64, 64),) * 2,
    ),
    Given(
        function=lambda x: F.group_norm(x, 32),
        inputs=lambda: (empty(8, 64, 32, 32).to(memory_format=torch.channels_last),),
    ),
    Given(
        function=partial(F.grid_sample, align_corners=False),
        inputs=lambda: (empty(2, 8, 64, 64), empty(2, 64, 64, 2)),
    ),
    Given(function=train, inputs=lambda: (empty(4096, 512).requires_grad_(),)),
    Given(function=lambda x, y: (x @ y).softmax(-1), inputs=lambda: (empty(1024, 512), empty(512, 512))),
    *(
        Given(
            function=lambda x, w: F.linear(x, w.to(x.dtype)),
            inputs=lambda dtype=dtype: (empty(1, 512, dtype=dtype), empty(256, 512, dtype=torch.int8)),
        )
        for dtype in (BF16, torch.float32)
    ),
    Given(
        function=lambda a, b, w: (a.relu() * b) @ w.float(),
        inputs=lambda: (empty(64, 512), empty(64, 512), empty(512, 512, dtype=I8)),
        contractions="generated",
    ),
)


def record(model: MachineModel, read: set[str]) -> MachineModel:
    """`model`, which puts into `read` the names of its figures that are asked for."""
    subjects = {field.name: getattr(model, field.name) for field in fields(model) if field.name != "name"}
    return replace(model, **{name: _record_subject(name, value, read) for name, value in subjects.items()})


def _record_subject(name: str, value: Any, read: set[str]) -> Any:
    kind = type(value)
    figures = [field.name for field in fields(kind)]

    def ask(self: Any, figure: str) -> Any:
        if figure in figures:
            read.add(f"{name}.{figure}")
        return kind.__getattribute__(self, figure)

    recorded = object.__new__(type(kind.__name__, (kind,), {"__slots__": (), "__getattribute__": ask}))
    for figure in figures:
        object.__setattr__(recorded, figure, getattr(value, figure))
    return recorded


def compile_all(graphs: Sequence[Given], target: Target, generator: Codegen) -> None:
    """Plan `graphs` for `target`, and write their kernels."""
    for given in graphs:
        torch._dynamo.reset()
        backend = Planner(
            target=target.name, options=CompileOptions(strict=True, contractions=given.contractions)
        )
        torch.compile(given.function, backend=backend, dynamic=False)(*given.inputs())
        emit_all(backend, target, generator)


def emit_all(backend: Planner, target: Target, generator: Codegen) -> None:
    assert backend.programs
    for program, likely in zip(backend.programs, backend.likely, strict=True):
        for kernel in program.kernels:
            sizes = likely.get(kernel.name)
            opens = generator.capabilities(target).versions_by_size and sizes is not None
            generator.emit(kernel, target, {"likely": sizes} if opens else {})


def compile_cases(names: Sequence[str], target: Target, generator: Codegen) -> None:
    """The same with benchmarks."""
    for name in names:
        torch._dynamo.reset()
        case, backend = find_case(name), Planner(target=target.name)
        inputs = case.inputs(Make(device=torch.device("cpu"), values=False), *(case.traced or case.size))
        compiled = torch.compile(case.function, backend=backend, dynamic=bool(case.dynamic or case.traced))
        call_of(case, compiled, inputs)()
        emit_all(backend, target, generator)


def rewrite_all(model: MachineModel, device: str) -> None:
    """Rewrite captured attention, and the ATen graphs of a product, as for `device`."""

    def find_model(device: str) -> MachineModel:
        return model

    options = RewriteOptions(find_model=find_model)

    def capture(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        assert rewrite_captured(gm, options) or device == "cpu"
        run: Callable[..., Any] = gm.forward
        return run

    torch._dynamo.reset()
    attention = torch.compile(lambda q, k, v: (q @ k.mT * 0.5).softmax(-1) @ v, backend=capture)
    for trained in (False, True):
        attention(*(torch.ones(2, 3, 8, 16, requires_grad=trained) for _ in range(3)))
    with FakeTensorMode():
        x, w, b = (torch.empty(*size, device=device) for size in ((2048, 512), (512, 512), (512,)))
        gm = make_fx(lambda x, w, b: torch.addmm(b, x, w).relu())(x, w, b)
        images, taps = (torch.empty(*size, device=device) for size in ((1, 64, 32, 32), (64, 64, 1, 1)))
        convolution = make_fx(torch.conv2d)(images, taps)
    clean_up_copy(gm, choose_rewrites("aten", options))
    pack_weights(gm, [1, 2], find_model)
    pack_weights(convolution, [1], find_model)
    recompute_large_products(make_fx(lambda x, w: (x @ w,))(x, w), num_fwd_outputs=1, find_model=find_model)
    compute_gradients_early(trace_loss(), num_fwd_outputs=1, find_model=find_model)
    if device != "cpu":
        for by_rows in (True, False):
            pad_all(LayoutOptions(devices=("cpu",), by_rows=by_rows, find_model=find_model))


def trace_loss() -> torch.fx.GraphModule:
    """The joint graph of a loss over a large vocabulary."""

    def loss_and_gradients(x: Tensor, w: Tensor, labels: Tensor, tangents_1: Tensor) -> tuple[Tensor, ...]:
        loss = F.cross_entropy(x @ w.t(), labels)
        return (loss, *torch.autograd.grad(loss, (x, w), tangents_1))

    with FakeTensorMode():
        x, w = (torch.empty(*size, requires_grad=True) for size in ((16384, 64), (50000, 64)))
        labels = torch.empty(16384, dtype=torch.int64)
        trace = make_fx(loss_and_gradients, decomposition_table=decompositions())
        return trace(x, w, labels, torch.empty(()))


def pad_all(options: LayoutOptions) -> None:
    """Pad sizes of products, or cut them by rows, and pad rows that nobody else sees."""

    def multiply(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.t()

    def multiply_part(x: Tensor, w: Tensor) -> Tensor:
        return x.exp()[:, :1000] @ w

    def empty_there(*size: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.empty(size, dtype=dtype)

    with FakeTensorMode():
        for size in (4096, 50257):
            pad_products(make_fx(multiply)(empty_there(8192, 768), empty_there(size, 768)), options)
        for dtype in (BF16, F32):
            operands = empty_there(8192, 1001, dtype=dtype), empty_there(1000, 512, dtype=dtype)
            pad_products(make_fx(multiply_part)(*operands), options)


def list_figures(model: MachineModel) -> set[str]:
    subjects = [field.name for field in fields(model) if field.name != "name"]
    return {f"{name}.{field.name}" for name in subjects for field in fields(getattr(model, name))}


def test_every_figure_of_a_gpu_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    target = replace(TARGETS["sm_90"], model=record(TARGETS["sm_90"].machine, read))
    monkeypatch.setattr(planner, "TARGETS", {target.name: target})
    # products stay of odd sizes
    monkeypatch.setattr(planner, "pad_products", lambda gm, layout: (gm, ()))
    compile_all(GPU_GRAPHS, target, TritonCodegen())
    compile_cases(CASES, target, TritonCodegen())
    rewrite_all(target.machine, "cuda")
    own = set(read_entries(TUNING / "sm_90.toml"))
    assert own - read == set(), "figures that nobody reads"
    assert read - own == set(), "figures of another device"


def test_a_cpu_reads_its_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    target = replace(TARGETS["x86-64-avx512"], model=record(TARGETS["x86-64-avx512"].machine, read))
    monkeypatch.setattr(planner, "TARGETS", {target.name: target})
    monkeypatch.setattr(planner, "move_to_gpu", lambda gm: gm)
    compile_all(CPU_GRAPHS, target, CppCodegen())
    rewrite_all(target.machine, "cpu")
    own = set(read_entries(TUNING / "cpu.toml"))
    assert own - read == set(), "figures that nobody reads"
    assert read - own == set(), "figures of a GPU stand in for those"


def test_every_figure_is_set_by_some_device() -> None:
    own = {name for path in TUNING.glob("*.toml") for name in read_entries(path)}
    assert own == list_figures(TARGETS["sm_90"].machine)


def test_a_changed_figure_changes_the_decision() -> None:
    """A reduction of few results is left whole where pieces never pay."""

    def reductions(target: Target) -> int:
        torch._dynamo.reset()
        backend = Planner(target="sm_90")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planner, "TARGETS", {"sm_90": target})
            torch.compile(lambda x: x.sum(0), backend=backend, dynamic=False)(empty(65536, 64))
        return len(backend.programs[0].kernels)

    target = TARGETS["sm_90"]
    never = replace(target.machine, reductions=replace(target.machine.reductions, clear_win=0.0))
    assert reductions(target) == 2
    assert reductions(replace(target, model=never)) == 1
