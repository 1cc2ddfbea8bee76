"""Save and restore the states of torch's random number generators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The states of the CPU's generator and of every GPU's."""

    cpu: Tensor
    cuda: Sequence[Tensor]

    def has_moved(self) -> bool:
        """Tell if numbers have been drawn since."""
        now = get_random_state()
        pairs = zip((self.cpu, *self.cuda), (now.cpu, *now.cuda))
        return len(self.cuda) != len(now.cuda) or not all(torch.equal(a, b) for a, b in pairs)


def get_random_state() -> RandomState:
    """Return the current states."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ()
    return RandomState(cpu=torch.get_rng_state(), cuda=cuda)


def restore(state: RandomState) -> None:
    """Restore the generators to `state`."""
    torch.set_rng_state(state.cpu)
    if state.cuda:
        torch.cuda.set_rng_state_all(state.cuda)
