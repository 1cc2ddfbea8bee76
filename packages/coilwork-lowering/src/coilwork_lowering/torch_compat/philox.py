"""The operators `coilwork::seed` and `coilwork::kept`, which draw random bits by Philox from a seed.

Graphs of AOTAutograd name operators, so a number that forward and backward both draw has to be a call of one.
Generated code draws them (`ops/random.py`). The implementations here run where a graph is left to eager mode,
and give the same bits.
"""

from __future__ import annotations

import math
from typing import Final

import torch

MULTIPLIER: Final = 0xD256D193
WEYL: Final = 0x9E3779B9
ROUNDS: Final = 10
WORD: Final = 1 << 32
HALF: Final = 16
"""Bits that decide whether something happens."""
SEED_END: Final = 1 << 62
DROPOUTS: Final = 1 << 15
"""The stream of a graph's first dropout. They are counted by themselves, so that they are the same in a graph
that has written them out.
"""

_LIBRARY: Final = torch.library.Library("coilwork", "FRAGMENT")
_LIBRARY.define("seed(Tensor like) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_LIBRARY.define("kept(Tensor seed, SymInt[] size, int stream, float probability) -> Tensor")


def _draw_seed(like: torch.Tensor) -> torch.Tensor:
    """Return a seed, `i64[1]`, on the device of `like`, from torch's generator."""
    return torch.randint(0, SEED_END, [1], dtype=torch.int64, device=like.device)


def _draw_kept(seed: torch.Tensor, size: list[int], stream: int, probability: float) -> torch.Tensor:
    """`bool` of `size`, each true with `probability`: a function of `seed`, of `stream` and of the position.

    Philox2x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), four neighbours to
    two words.
    """
    position = torch.arange(math.prod(size), dtype=torch.int64, device=seed.device)
    counter = position >> 2
    first, key = _low(counter), _low(seed)
    second = _low(seed >> 32) ^ stream ^ _low(counter >> 32 << HALF)
    for number in range(ROUNDS):
        # wraps around in 64 bits, as it should
        wide = first * MULTIPLIER
        mixed = second ^ _low(key + number * WEYL % WORD)
        first, second = _low(wide >> 32) ^ mixed, _low(wide)
    word = torch.where(_bit(position, 1), second, first)
    bits = torch.where(_bit(position, 0), word >> HALF, word & ((1 << HALF) - 1))
    return (bits < round(probability * (1 << HALF))).view(size)


def _low(words: torch.Tensor) -> torch.Tensor:
    """Return the low 32 bits of each number."""
    return words & (WORD - 1)


def _bit(position: torch.Tensor, number: int) -> torch.Tensor:
    return (position >> number & 1).to(torch.bool)


_LIBRARY.impl("seed", _draw_seed, "CompositeExplicitAutograd")
_LIBRARY.impl("seed", lambda like: like.new_empty((1,), dtype=torch.int64), "Meta")
_LIBRARY.impl("kept", _draw_kept, "CompositeExplicitAutograd")
_LIBRARY.impl("kept", lambda seed, size, stream, probability: seed.new_empty(size, dtype=torch.bool), "Meta")

draw_seed: Final = torch.ops.coilwork.seed.default
draw_kept: Final = torch.ops.coilwork.kept.default
