"""What `batch_invariant` promises, held: a row gives the same bits alone, in batches of any size and at any
position.

One reference per case, of all rows in one call; every other call must give parts of it. Run as a module it
answers for the cases that `answers_of` asks for; `TRITON_INTERPRET` then says which back end runs.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coilwork.backend import backend

WIDTH: Final = 48
_GENERATOR: Final = torch.Generator().manual_seed(0)
_WEIGHT: Final = torch.randn(WIDTH, WIDTH, generator=_GENERATOR) * WIDTH**-0.5
_UP: Final = torch.randn(4 * WIDTH, WIDTH, generator=_GENERATOR) * WIDTH**-0.5
_DOWN: Final = torch.randn(WIDTH, 4 * WIDTH, generator=_GENERATOR) * WIDTH**-0.5
_BIAS: Final = torch.randn(WIDTH, generator=_GENERATOR)


class Block(nn.Module):
    """A block of GPT-2: what it gives for a sequence of the batch is that sequence's alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.attend(self.first(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        wide = F.gelu(self.up(self.second(x)), approximate="tanh")
        result: Tensor = x + self.down(wide)
        return result


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _rms_norm(x: Tensor) -> Tensor:
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return x * scale.to(x.dtype)


def _log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def _cross_entropy(x: Tensor) -> Tensor:
    return F.cross_entropy(x, (x[:, 0].float().abs() * 7).long() % x.shape[1], reduction="none")


def _attention(x: Tensor) -> Tensor:
    heads = x.view(x.shape[0], 2, 6, -1)
    return F.scaled_dot_product_attention(heads, heads, heads).reshape(x.shape[0], -1)


def _mlp(x: Tensor) -> Tensor:
    wide = F.gelu(F.linear(x, _UP.to(x.dtype)))
    return F.linear(wide, _DOWN.to(x.dtype), _BIAS.to(x.dtype))


def _product(x: Tensor) -> Tensor:
    result: Tensor = x @ _WEIGHT.to(x.dtype)
    return result


def _functions(x: Tensor) -> Tensor:
    return torch.tanh(x) + torch.log1p(x.abs()) + torch.sin(x) + torch.pow(x.abs(), 1.3)


def _columns(x: Tensor) -> Tensor:
    # rows lie across memory: with many of them side by side a loop runs over rows, with one it cannot
    return (x.t().contiguous() * 1.5).sum(0)


_BLOCK: Final = Block().requires_grad_(False)
with torch.no_grad():
    for _parameter in _BLOCK.parameters():
        _parameter.copy_(torch.randn(_parameter.shape, generator=_GENERATOR) * WIDTH**-0.5)


def _block(x: Tensor) -> Tensor:
    module = _BLOCK if x.dtype is torch.float32 else _HALF_BLOCK
    result: Tensor = module(x.view(x.shape[0], 6, WIDTH))
    return result


_HALF_BLOCK: Final = Block().requires_grad_(False).bfloat16()
_HALF_BLOCK.load_state_dict(_BLOCK.state_dict())


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function of rows, and how long they are."""

    run: Callable[[Tensor], Tensor]
    width: int = WIDTH


CASES: Final[Mapping[str, Case]] = {
    "softmax": Case(run=_softmax, width=101),
    "layer-norm": Case(run=_layer_norm, width=101),
    "rms-norm": Case(run=_rms_norm, width=7),
    "log-sum-exp": Case(run=_log_sum_exp, width=130),
    "cross-entropy": Case(run=_cross_entropy, width=67),
    "long rows": Case(run=_layer_norm, width=33001),
    "columns": Case(run=_columns, width=51),
    "functions": Case(run=_functions, width=37),
    "attention": Case(run=_attention, width=2 * 6 * 8),
    "product": Case(run=_product),
    "mlp": Case(run=_mlp),
    "gpt2 block": Case(run=_block, width=6 * WIDTH),
}


def differences(case: Case, dtype: torch.dtype, batches: Sequence[int]) -> list[str]:
    """Batches, of sizes `batches` and of the largest of them, whose rows have other bits than in one batch of
    all rows.
    """
    rows = max(batches)
    x = torch.randn(rows, case.width, generator=torch.Generator().manual_seed(1)).to(dtype)
    found: list[str] = []
    reference: Tensor | None = None
    for dynamic in (False, True):
        torch._dynamo.reset()
        for count in sorted(batches, reverse=True):
            if not dynamic:
                torch._dynamo.reset()
            compiled = torch.compile(
                case.run, backend=backend, options={"batch_invariant": True}, dynamic=dynamic, fullgraph=True
            )
            for at in sorted({0, (rows - count) // 3, rows - count}):
                result = compiled(x[at : at + count].clone())
                if reference is None:
                    reference = result
                elif not _same_bits(result, reference[at : at + count]):
                    found.append(f"{count} rows from row {at}, dynamic={dynamic}")
    assert reference is not None
    close = torch.allclose(reference.float(), case.run(x).float(), rtol=0.05, atol=0.05)
    return found if close else [*found, "far from eager"]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def answer(name: str, dtype: str, batches: Sequence[int]) -> str:
    """What is wrong with a case; empty if nothing is."""
    try:
        with torch.no_grad():
            return "; ".join(differences(CASES[name], getattr(torch, dtype), batches))
    except Exception:  # noqa: BLE001 - the test that asked fails with it
        return traceback.format_exc()


def main() -> None:
    """Every case of `BATCH_CASES`, by Triton's interpreter or in C++ as the environment says; answers in
    JSON.
    """
    asked = json.loads(os.environ["BATCH_CASES"])
    print(json.dumps({f"{n} {d}": answer(n, d, b) for n, d, b in asked}), file=sys.stdout)


if __name__ == "__main__":
    main()
