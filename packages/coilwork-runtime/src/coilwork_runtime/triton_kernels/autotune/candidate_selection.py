"""Select among a few candidate configurations: time each once on the real arguments, and remember the
choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

from coilwork_cache import Store, TuningCache, content_key
from coilwork_runtime.triton_kernels.compilation import GpuBinary, encode_binary

# Of what is remembered: raised, it is measured anew.
FORMAT: Final = "4"
# A later candidate must beat the best guess by this share and by these milliseconds: below them, timing noise
# would decide.
MARGIN: Final = 0.0075
TICK: Final = 0.00025


def make_selection_key(candidates: Sequence[GpuBinary], device_name: str, sizes: Sequence[int]) -> str:
    """Return the key of a choice: machine code of the candidates, device, and sizes up to a power of two."""
    digests = [hashlib.sha256(encode_binary(binary)).hexdigest() for binary in candidates]
    return content_key("tuning", FORMAT, device_name, *digests, *(str(size.bit_length()) for size in sizes))


def select_candidate(
    trials: Sequence[Callable[..., None]],
    args: Sequence[Any],
    roles: Sequence[str],
    *,
    measure: Callable[[Callable[[], None]], float],
    store: Store | None,
    key: str,
    mappings: Sequence[str | None],
) -> int:
    """Return the index of the fastest of `trials`, called with `args`, whose values stay as they are.

    `roles` are those of the tensors in `args`. Earlier trials are better guesses: ties go to them. One that
    beats the best guess is timed again beside it, and must win both times: what else runs on the device takes
    as long as a whole measurement, and would unseat the guess for good. What is remembered is the mapping of
    the fastest, one of `mappings`; a kernel that tells none is timed every time.
    """
    if None in mappings:
        store = None
    tuning = TuningCache(store)
    known = _recall(tuning, key, mappings)
    if known is not None:
        return known
    expendable = make_expendable_arguments(args, roles)
    calls = [partial(trial, *expendable) for trial in trials]
    times = [measure(call) for call in calls]
    index = find_fastest(times)
    if index and not find_fastest([measure(calls[0]), measure(calls[index])]):
        index = 0
    tuning.put(key, {"mapping": mappings[index], "candidates": list(mappings), "milliseconds": list(times)})
    return index


def find_fastest(times: Sequence[float]) -> int:
    """Return the index of the least time, where a later one counts only if it is clearly less than the
    first.
    """
    best = min(range(len(times)), key=times.__getitem__)
    return best if times[best] < times[0] * (1 - MARGIN) - TICK else 0


def drop_spilling(spill_bytes: Sequence[int]) -> list[int]:
    """Return the indices of candidates worth timing: those that keep all values in registers, or all of them
    if none does.
    """
    clean = [index for index, spilled in enumerate(spill_bytes) if not spilled]
    return clean or list(range(len(spill_bytes)))


def make_expendable_arguments(args: Sequence[Any], roles: Sequence[str]) -> list[Any]:
    """`args` for running a kernel several times: tensors that it updates, or that share memory with what it
    reads, copied.

    An output of its own memory is written as it is: the real call writes it again.
    """
    tensors = list(zip(args, roles, strict=False))
    read = {_storage(tensor) for tensor, role in tensors if role in ("in", "inout")}
    copied = [
        _copy(tensor) if role == "inout" or (role == "out" and _storage(tensor) in read) else tensor
        for tensor, role in tensors
    ]
    return [*copied, *args[len(copied) :]]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    same = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return same.copy_(tensor)


def _recall(tuning: TuningCache, key: str, mappings: Sequence[str | None]) -> int | None:
    record = tuning.get(key)
    if record is None:
        return None
    mapping = record.get("mapping")
    if isinstance(mapping, str) and mapping in mappings:
        return mappings.index(mapping)
    tuning.delete(key)
    return None
