"""`flex_attention` and written-out attention on a CPU: time and memory beside other compilers.

    python -m benchmarks.cpu_attention                      every variant, f32 and bf16, on two threads
    python -m benchmarks.cpu_attention --only alibi,cap --beside eager,inductor

A line is a variant with one compiler, which runs in a process of its own: the least milliseconds of some
calls, the most memory during a call beyond what was there before, and the distance from float64 in units of
the largest element. Shapes are 1 x 8 x 2048 x 64. Names with `written` are products and a softmax; the others
are `flex_attention`.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BATCH, HEADS, LENGTH, HEAD = 1, 8, 2048, 64
SLOPES = torch.exp2(-(torch.arange(HEADS) + 1) * 8.0 / HEADS)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k <= 256)


def document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q * 7 // LENGTH == k * 7 // LENGTH) & (q >= k)


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + SLOPES[h] * (k - q)


def cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 20 * torch.tanh(score / 20)


FLEX: Mapping[str, tuple[Callable[..., Any] | None, Callable[..., Any] | None]] = {
    "full": (None, None),
    "causal": (None, causal),
    "window": (None, window),
    "document": (None, document),
    "alibi": (alibi, causal),
    "cap": (cap, causal),
}


def written_alibi(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    distance = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None]
    scores = q @ k.transpose(-1, -2) * HEAD**-0.5 + SLOPES.to(q.dtype)[:, None, None] * distance
    weights: Tensor = torch.where(distance <= 0, scores, -math.inf).softmax(-1).to(v.dtype)
    return weights @ v


def written_cap(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = 20 * torch.tanh(q @ k.transpose(-1, -2) * HEAD**-0.5 / 20)
    shown = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return scores.masked_fill(~shown, -math.inf).softmax(-1) @ v


def written_gate(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores: Tensor = torch.sigmoid(bias) * (q @ k.transpose(-1, -2) * HEAD**-0.5)
    return scores.softmax(-1) @ v


WRITTEN: Mapping[str, Callable[..., Tensor]] = {
    "written-alibi": written_alibi,
    "written-cap": written_cap,
    "written-gate": written_gate,
}


def make_function(name: str) -> Callable[..., Any]:
    """Return the variant `name`, of queries, keys, values and a bias."""
    if name in WRITTEN:
        return WRITTEN[name]
    score, mask = FLEX[name]
    blocks = None if mask is None else create_block_mask(mask, None, None, LENGTH, LENGTH, device="cpu")
    return lambda q, k, v, bias: flex_attention(q, k, v, score_mod=score, block_mask=blocks)


def compute_exactly(name: str, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The result in float64."""
    if name in WRITTEN:
        return WRITTEN[name](q, k, v, bias)
    score, mask = FLEX[name]
    head = torch.arange(HEADS)[:, None, None]
    row, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    scores = q @ k.mT / math.sqrt(HEAD)
    if score is not None:
        scores = score(scores, 0, head, row, key)
    if mask is not None:
        scores = scores.masked_fill(~mask(0, head, row, key), -math.inf)
    return scores.softmax(-1) @ v


def read_peak_kib(reset: bool = False) -> int:
    """The most memory that this process has had since the last reset; see proc(5)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def measure(name: str, compiler: str, dtype: str, calls: int) -> str:
    """A line about one variant."""
    if compiler == "coilwork":
        import coilwork  # noqa: F401
    generator = torch.Generator().manual_seed(0)
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    given = [torch.randn(BATCH, HEADS, LENGTH, HEAD, generator=generator).to(kind) for _ in range(3)]
    given.append(torch.randn(HEADS, LENGTH, LENGTH, generator=generator).to(kind))
    function = make_function(name)
    compiled = function if compiler == "eager" else torch.compile(function, backend=compiler, dynamic=False)
    with torch.no_grad():
        found = compiled(*given)
        before = read_peak_kib(reset=True)
        found = compiled(*given)
        peak = read_peak_kib() - before
        times: list[float] = []
        for _ in range(calls):
            begin = time.perf_counter()
            compiled(*given)
            times.append(time.perf_counter() - begin)
        exact = compute_exactly(name, *(x.double() for x in given))
    off = float((found.double() - exact).abs().max() / exact.abs().max())
    return (
        f"{name:14} {dtype:5} {compiler:9} {min(times) * 1e3:8.1f} ms {peak / 1024:7.1f} MiB  off {off:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="names of variants, joined by commas")
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--beside", default="", help="other backends, joined by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=7)
    parser.add_argument("--one", nargs=3, help="name, compiler and type of one line, in this process")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        name, compiler, dtype = options.one
        print(measure(name, compiler, dtype, options.calls), flush=True)
        return
    names = options.only.split(",") if options.only else [*FLEX, *WRITTEN]
    for name in names:
        for dtype in options.types.split(","):
            for compiler in ("coilwork", *filter(None, options.beside.split(","))):
                command = [sys.executable, "-m", "benchmarks.cpu_attention", "--one", name, compiler, dtype]
                command += ["--threads", str(options.threads), "--calls", str(options.calls)]
                done = subprocess.run(command, capture_output=True, text=True)
                failure = f"{name} {dtype} {compiler} FAILED {done.stderr[-300:]}"
                print(done.stdout.strip() or failure, flush=True)


if __name__ == "__main__":
    main()
