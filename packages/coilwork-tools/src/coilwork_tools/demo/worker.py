"""The demo's measurements of one backend, in a process of its own so that caches and memory peaks are its
own.

`python -m coilwork_tools.demo.worker TASK BACKEND DEVICE FOLDER` runs `infer`, `again` (a second process's
first call) or
`train`, tells its progress on stdout line by line, and writes FOLDER/TASK-BACKEND.json. Tensors that later
tasks compare with go to FOLDER too.

The demo's input: the opening of Herman Melville's Moby-Dick (1851, public domain).
"""

from __future__ import annotations

import copy
import gc
import importlib
import json
import logging
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from coilwork_frontend.torch_compat.operators import OperatorCounter
from coilwork_tools.measurement import is_measured_by_cuda, measure_cpu_peak_bytes, measure_cuda_peak_bytes

TEXT: Final = (
    "Call me Ishmael. Some years ago—never mind how long precisely—having little or no money in my "
    "purse, and "
    "nothing particular to interest me on shore, I thought I would sail about a little and see the "
    "watery part of "
    "the world. It is a way I have of driving off the spleen and regulating the circulation. Whenever I "
    "find myself "
    "growing grim about the mouth; whenever it is a damp, drizzly November in my soul; whenever I find "
    "myself "
    "involuntarily pausing before coffin warehouses, and bringing up the rear of every funeral I meet; and "
    "especially whenever my hypos get such an upper hand of me, that it requires a strong moral "
    "principle to prevent "
    "me from deliberately stepping into the street, and methodically knocking people's hats off—then, I "
    "account it "
    "high time to get to sea as soon as I can."
)


def make_byte_tokens(length: int) -> list[int]:
    """Return the text's first `length` UTF-8 bytes as token numbers below 256; ValueError if it is
    shorter.
    """
    encoded = TEXT.encode("utf-8")
    if not 0 < length <= len(encoded):
        raise ValueError(f"the text has {len(encoded)} bytes, {length} were asked for")
    return list(encoded[:length])


INFERENCE_TOKENS: Final = 256
# The line that says: waiting for the parent.
READY: Final = "ready"
TRAINING_TOKENS: Final = 64
# Units in the last place (of the largest element) that any float32 program may be off by; see
# `is_within_bounds`.
FLOOR: Final = 16 * torch.finfo(torch.float32).eps
# AdamW's first step is a sign function of every gradient above eps. Gradients that are zero in exact
# arithmetic (the key projection's bias) hold rounding noise; this eps keeps that noise from becoming
# full-sized updates, in eager too.
LEARNING_RATE: Final = 1e-3
EPSILON: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Distance from the float64 reference: largest absolute difference, and L2 norm relative to the
    reference's.
    """

    max_abs: float
    relative_l2: float
    scale: float


@dataclass(slots=True, kw_only=True)
class Findings:
    """The findings of one worker. Seconds and milliseconds are wall time; None where the task does not
    measure it.
    """

    first_call_s: float
    ms: float | None = None
    peak_bytes: int | None = None
    kernels: int | None = None
    cache_hit: bool | None = None
    same_as_first_process: bool | None = None
    difference_from_eager: float | None = None
    errors: dict[str, Error] = field(default_factory=dict)
    eager_errors: dict[str, Error] = field(default_factory=dict)
    eager_ms: float | None = None
    loss: float | None = None


def say(text: str) -> None:
    """One line of progress for the parent."""
    print(text, flush=True)


class CompilerProgress(logging.Handler):
    """Passes on what the compiler tells of its kernels."""

    def emit(self, record: logging.LogRecord) -> None:
        if "kernels ready" in record.msg:
            say(f"compiling: {record.getMessage().partition(': ')[2]}")


def show_compiler_progress() -> None:
    """Show the compiler's progress as this process's from now on."""
    logger = logging.getLogger("coilwork")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(CompilerProgress())


def build_model(device: str) -> torch.nn.Module:
    """GPT-2 with 124 million random parameters, the same in every process; no dropout, so that
    runs compare.
    """
    from transformers import GPT2Config, GPT2LMHeadModel  # an optional dependency, needed here alone

    torch.manual_seed(0)
    model: torch.nn.Module = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    return model.to(device).eval()


def make_tokens(length: int, device: str) -> Tensor:
    """One row of the text's bytes: int64 [1, length]."""
    return torch.tensor([make_byte_tokens(length)], device=device)


def compile_function(function: Callable[..., Any], backend: str, place: str = "") -> Callable[..., Any]:
    """`function` under torch.compile, or as it is for `eager`.

    `place`, MODULE:FUNCTION, is where a backend stands that torch has not been told of.

    `backend` may name a mode (`coilwork:reduce-overhead`); `NAME-max` is short for
    `NAME:max-autotune-no-cudagraphs`.
    """
    name, _, mode = backend.partition(":")
    if name.endswith("-max"):
        name, mode = name.removesuffix("-max"), mode or "max-autotune-no-cudagraphs"
    if name == "eager":
        return function
    registered = {point.name for point in entry_points(group="torch_dynamo_backends")}
    if place and name not in registered:
        module, _, attribute = place.partition(":")
        compiler = getattr(importlib.import_module(module), attribute)
        return torch.compile(function, backend=compiler, mode=mode or None)
    return torch.compile(function, backend=name, mode=mode or None)


def synchronize(device: str) -> None:
    """Wait for what a GPU has been given."""
    if is_measured_by_cuda(device):
        torch.cuda.synchronize()


def measure_seconds(call: Callable[[], object], device: str) -> float:
    """Wall seconds of one call, the device's work included."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def measure_peak_bytes(call: Callable[[], object], device: str) -> int:
    """Return the peak of PyTorch's allocator during one call, above what was allocated before."""
    measure = measure_cuda_peak_bytes if is_measured_by_cuda(device) else measure_cpu_peak_bytes
    return measure(call)


def read_reports(trace: Path) -> list[dict[str, Any]]:
    """Coilwork's account of each graph it compiled, from the stage dumps."""
    return [json.loads(path.read_text()) for path in sorted(trace.rglob("report.json"))]


def count_launches(call: Callable[[], object], backend: str, device: str) -> int:
    """Kernels and library calls per call: by the profiler on a GPU, by each compiler's own account on the
    CPU.
    """
    if is_measured_by_cuda(device):
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
            torch.cuda.synchronize()
        events = profiler.events() or ()
        return sum(
            e.device_type.name == "CUDA" and not e.name.startswith(("Memcpy", "Memset")) for e in events
        )
    if backend == "eager":
        counter = OperatorCounter()
        with counter:
            call()
        return counter.count
    if backend == "coilwork":
        return sum(r["kernels"] + r["extern_calls"] for r in read_reports(Path(os.environ["COILWORK_TRACE"])))
    pattern = re.compile(
        r"^\s+(?:\w+ = )?(?:cpp_fused\w*|extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", re.MULTILINE
    )
    sources = (path.read_text() for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.py"))
    return sum(len(pattern.findall(text)) for text in sources if "async_compile" in text)


def compute_error(values: list[Tensor], reference: list[Tensor]) -> Error:
    """Return the error of a list of tensors taken as one vector. A NaN anywhere makes both figures NaN."""
    squares = reference_squares = largest = scale = 0.0
    for value, exact in zip(values, reference, strict=True):
        difference = value.detach().double() - exact.double()
        squares += difference.square().sum().item()
        reference_squares += exact.double().square().sum().item()
        worst = difference.abs().max().item()
        largest = worst if not worst <= largest else largest  # also when it is NaN
        scale = max(scale, exact.abs().max().item())
    return Error(max_abs=largest, relative_l2=(squares / reference_squares) ** 0.5, scale=scale)


def is_within_bounds(error: Error, eager: Error) -> bool:
    """Return True if an error is at most twice eager's own, plus a few units in the last place."""
    return (
        error.max_abs <= 2 * eager.max_abs + FLOOR * eager.scale
        and error.relative_l2 <= 2 * eager.relative_l2 + FLOOR
    )


def run_rounds(call: Callable[[], object], device: str) -> list[float]:
    """Seconds of two calls per line on stdin, until its end.

    The parent sends the lines to one worker after the other, so that whatever else slows the machine down
    slows every backend alike.
    """
    say(READY)
    times: list[float] = []
    for _ in sys.stdin:
        times += [measure_seconds(call, device) for _ in range(2)]
        say(READY)
    return times


def infer(backend: str, device: str, folder: Path, *, again: bool) -> Findings:
    """First call, correctness, time, memory and launches of the forward; `again`: only the first call."""
    say("building the model")
    model, ids = build_model(device), make_tokens(INFERENCE_TOKENS, device)
    say("first call" if backend == "eager" else "compiling")

    def forward() -> Tensor:
        with torch.no_grad():
            logits: Tensor = compiled(input_ids=ids, use_cache=False).logits
        return logits

    start = time.perf_counter()
    compiled = compile_function(model, backend)
    forward()
    synchronize(device)
    findings = Findings(first_call_s=time.perf_counter() - start)
    logits = forward()
    if again:
        hits = [report["cache_hit"] for report in read_reports(Path(os.environ["COILWORK_TRACE"]))]
        findings.cache_hit = bool(hits) and all(hits)
        findings.same_as_first_process = torch.equal(logits, torch.load(folder / f"logits-{backend}.pt"))
        return findings
    torch.save(logits, folder / f"logits-{backend}.pt")
    findings.ms = statistics.median(run_rounds(forward, device)) * 1e3
    say("measuring memory")
    findings.peak_bytes = measure_peak_bytes(forward, device)
    findings.kernels = count_launches(forward, backend, device)
    if backend == "eager":
        say("float64 reference")
        with torch.no_grad():
            torch.save(
                copy.deepcopy(model).double()(input_ids=ids, use_cache=False).logits, folder / "logits-f64.pt"
            )
    exact, eager = torch.load(folder / "logits-f64.pt"), torch.load(folder / "logits-eager.pt")
    findings.errors = {"logits": compute_error([logits], [exact])}
    findings.eager_errors = {"logits": compute_error([eager], [exact])}
    findings.difference_from_eager = (logits - eager).abs().max().item()
    return findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """The results of one training step, and its time."""

    results: dict[str, list[Tensor]]
    seconds: float
    again_ms: float


def run_training_step(model: torch.nn.Module, ids: Tensor, backend: str, *, repeat: bool) -> Stepped:
    """Forward with loss, backward, AdamW; forward and optimizer step through `backend`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPSILON)

    def forward() -> Tensor:
        loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
        return loss

    def update() -> None:
        optimizer.step()

    compiled_forward, compiled_update = compile_function(forward, backend), compile_function(update, backend)
    losses: list[Tensor] = []

    def step() -> None:
        optimizer.zero_grad()
        loss = compiled_forward()
        torch.autograd.backward(loss)
        compiled_update()
        losses.append(loss.detach())

    first_s = measure_seconds(step, ids.device.type)
    parameters = list(model.parameters())
    results = {
        "loss": [losses[0]],
        "gradients": [p.grad.clone() for p in parameters if p.grad is not None],
        "parameters": [p.detach().clone() for p in parameters],
    }
    again_ms = (
        statistics.median(measure_seconds(step, ids.device.type) for _ in range(2)) * 1e3 if repeat else 0.0
    )
    return Stepped(results=results, seconds=first_s, again_ms=again_ms)


def train(backend: str, device: str) -> Findings:
    """One training step against the same step in eager and in float64."""
    say("building the model")
    model, ids = build_model(device).train(), make_tokens(TRAINING_TOKENS, device)
    say("float64 reference step")
    exact = run_training_step(copy.deepcopy(model).double(), ids, "eager", repeat=False).results
    gc.collect()  # two gigabytes that the optimizer held
    say("eager step")
    eager = run_training_step(copy.deepcopy(model), ids, "eager", repeat=True)
    say("compiling forward, backward and AdamW")
    stepped = run_training_step(model, ids, backend, repeat=True)
    say("comparing")
    return Findings(
        first_call_s=stepped.seconds,
        ms=stepped.again_ms,
        eager_ms=eager.again_ms,
        loss=stepped.results["loss"][0].item(),
        errors={name: compute_error(values, exact[name]) for name, values in stepped.results.items()},
        eager_errors={name: compute_error(values, exact[name]) for name, values in eager.results.items()},
    )


def main() -> None:
    task, backend, device, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    show_compiler_progress()
    if task == "train":
        findings = train(backend, device)
    else:
        findings = infer(backend, device, folder, again=task == "again")
    (folder / f"{task}-{backend}.json").write_text(json.dumps(asdict(findings)))


if __name__ == "__main__":
    main()
