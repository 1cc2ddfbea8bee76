"""`flex_attention` on a GPU: variants beside float64, and their time and memory beside another compiler's.

    python -m benchmarks.flex_attention                 every variant, forward and backward
    python -m benchmarks.flex_attention --only causal --beside inductor

Each line has milliseconds of forward, and of forward and backward, TFLOP/s of forward by the share of scores
that count, the most memory beyond what was there before, and how far results and gradients are from float64:
in units of the largest element, ours and eager's in f32 rounded to the type.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BATCH, HEADS, LENGTH = 2, 16, 4096


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A score and a mask, as functions over tensors on the device, and the shape."""

    name: str
    head: int = 64
    key_heads: int = HEADS
    score: Callable[..., Tensor] | None = None
    mask: Callable[..., Tensor] | None = None
    share: float = 1.0
    captured: tuple[Tensor, ...] = field(default=(), repr=False)


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k <= 256)


def list_variants(device: str) -> tuple[Variant, ...]:
    """The variants that are measured."""
    slopes = torch.exp2(-(torch.arange(HEADS, device=device) + 1) * 8.0 / HEADS)
    table = (torch.rand(HEADS, device=device) - 0.5).bfloat16()
    document = (torch.arange(LENGTH, device=device) * 7 // LENGTH).to(torch.int32)

    def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + slopes[h] * (k - q)

    def cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return 20 * torch.tanh(score / 20)

    def distance(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        # eager rounds the product to the table's 16 bits, by up to 4 far from the diagonal
        wide = table.double() if score.dtype is torch.float64 else table
        return score + wide[h] * (q - k)

    def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (document[q] == document[k]) & (q >= k)

    half, near = 0.5, 256 / LENGTH
    return (
        Variant(name="causal", mask=causal, share=half),
        Variant(name="window", mask=window, share=near),
        Variant(name="alibi", score=alibi, mask=causal, share=half),
        Variant(name="cap", score=cap, mask=causal, share=half),
        Variant(name="document", mask=same, share=half / 7),
        Variant(name="captured", score=distance, mask=causal, share=half),
        Variant(name="gqa", mask=causal, key_heads=4, share=half),
        Variant(name="full", share=1.0),
        Variant(name="causal128", mask=causal, head=128, share=half),
        Variant(name="full128", head=128, share=1.0),
    )


def reference(variant: Variant, q: Tensor, k: Tensor, v: Tensor, rows: int) -> Tensor:
    """The first `rows` of the result in float64."""
    device, keys = q.device, k.shape[2]
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q[:, :, :rows] @ k.mT / math.sqrt(q.shape[-1])
    h = torch.arange(q.shape[1], device=device)[:, None, None]
    i = torch.arange(rows, device=device)[:, None]
    j = torch.arange(keys, device=device)
    zero = torch.zeros((), dtype=torch.long, device=device)
    if variant.score is not None:
        scores = variant.score(scores, zero, h, i, j)
    if variant.mask is not None:
        scores = scores.masked_fill(~variant.mask(zero, h, i, j), -math.inf)
    return scores.softmax(-1) @ v


def make_function(variant: Variant, device: str) -> Callable[..., Any]:
    """Return attention of `variant`."""
    mask = None
    if variant.mask is not None:
        mask = create_block_mask(variant.mask, None, None, LENGTH, LENGTH, device=device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(
            q, k, v, score_mod=variant.score, block_mask=mask, enable_gqa=variant.key_heads != HEADS
        )

    return attend


def draw(variant: Variant, device: str) -> list[Tensor]:
    """Queries, keys and values."""
    generator = torch.Generator(device).manual_seed(0)
    heads = (HEADS, variant.key_heads, variant.key_heads)
    return [
        torch.randn(BATCH, n, LENGTH, variant.head, device=device, dtype=torch.bfloat16, generator=generator)
        for n in heads
    ]


def measure(run: Callable[[], object], lock: str) -> float:
    """Milliseconds that the device is busy with `run`, while no other process that has the same file `lock`
    measures.
    """
    from triton.testing import do_bench

    with open(lock, "w") if lock else nullcontext() as file:
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        return float(do_bench(run, warmup=10, rep=50, return_mode="median"))


def distance(found: Tensor, exact: Tensor) -> float:
    """The greatest difference in units of the greatest element."""
    return float((found.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max())


def check(variant: Variant, function: Callable[..., Any], device: str, rows: int = 256) -> str:
    """Distances from float64 of the result and the gradients of queries, for the first rows, and if results
    are the same twice.
    """
    given = [x.requires_grad_() for x in draw(variant, device)]
    up = torch.zeros(BATCH, HEADS, LENGTH, variant.head, device=device, dtype=torch.bfloat16)
    generator = torch.Generator(device).manual_seed(1)
    up[:, :, :rows] = torch.randn(
        BATCH, HEADS, rows, variant.head, device=device, dtype=torch.bfloat16, generator=generator
    )
    out = function(*given)
    grads = torch.autograd.grad(out, given, up)
    again = function(*given)
    same = torch.equal(out, again) and all(
        torch.equal(a, b) for a, b in zip(grads, torch.autograd.grad(again, given, up), strict=True)
    )
    exact = [x.detach().double().requires_grad_() for x in given]
    q, k, v = exact
    whole = reference(variant, q, k, v, rows)
    wanted = torch.autograd.grad(whole, exact, up[:, :, :rows].double())
    parts = [distance(out[:, :, :rows], whole)]
    parts += [distance(g, w) for g, w in zip(grads, wanted, strict=True)]
    return " ".join(f"{part:.1e}" for part in parts) + (" same" if same else " DIFFERS")


def run(variant: Variant, name: str, device: str, *, lock: str, checks: bool, backward: bool) -> str:
    """A line about `variant`, compiled by the backend `name`."""
    torch._dynamo.reset()
    begin = time.time()
    function = make_function(variant, device)
    compiled: Any = function
    if name != "eager":
        compiled = torch.compile(function, backend=name, dynamic=False)
    given = draw(variant, device)
    with torch.no_grad():
        compiled(*given)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        compiled(*given)
        torch.cuda.synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        forward = measure(lambda: compiled(*given), lock)
    flops = 4 * BATCH * HEADS * LENGTH * LENGTH * variant.head * variant.share
    line = f"{variant.name:10} {name:9} fwd {forward:.3f} ms {flops / forward / 1e9:4.0f} TF {peak:6.1f} MiB"
    if backward:
        leaves = [x.requires_grad_() for x in given]
        out = compiled(*leaves)
        up = torch.randn_like(out)
        torch.autograd.grad(compiled(*leaves), leaves, up)
        both = measure(lambda: torch.autograd.grad(compiled(*leaves), leaves, up), lock)
        line += f" both {both:.3f} ms"
    if checks:
        line += f" off {check(variant, compiled, device)}"
    return f"{line} [{time.time() - begin:.0f} s]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="names of variants, joined by commas")
    parser.add_argument("--beside", default="", help="another backend")
    parser.add_argument("--lock", default="", help="a file that processes that measure share")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no variant behind this")
    options = parser.parse_args()
    begin = time.time()
    wanted = options.only.split(",") if options.only else []
    for variant in list_variants("cuda"):
        if wanted and variant.name not in wanted:
            continue
        for name in ("coilwork", *([options.beside] if options.beside else [])):
            if time.time() - begin > options.seconds:
                return
            checks = not options.no_check and name == "coilwork"
            try:
                print(
                    run(
                        variant,
                        name,
                        "cuda",
                        lock=options.lock,
                        checks=checks,
                        backward=not options.no_backward,
                    ),
                    flush=True,
                )
            except RuntimeError as error:  # the others are still worth measuring
                print(variant.name, name, "FAILED", repr(error)[:300], flush=True)


if __name__ == "__main__":
    main()
