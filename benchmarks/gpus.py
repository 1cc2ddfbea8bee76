"""Work spread over the GPUs of a machine: each piece has one of them to itself."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

R = TypeVar("R")

VARIABLE = "CUDA_VISIBLE_DEVICES"


def gpu_names(count: int) -> tuple[str, ...]:
    """Return what `VARIABLE` calls the first `count` GPUs that this process sees; an empty name stands for
    what is inherited.

    Raises ValueError if there are fewer.
    """
    if count == 1:
        return ("",)
    visible = os.environ.get(VARIABLE)
    names = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    if len(names) < count:
        raise ValueError(f"{count} GPUs were asked for, and there are {len(names)}")
    return tuple(names[:count])


def gpu_environment(name: str) -> dict[str, str]:
    """Variables for a process that is to see the GPU of that `name` alone."""
    return {VARIABLE: name} if name else {}


def side_by_side(gpus: Sequence[str], work: Callable[[str], Iterator[R]]) -> Iterator[R]:
    """Yield what `work(gpu)` yields for each of `gpus`, as it comes; what they are to do they take from one
    iterator.

    An exception of `work` is raised here, when the other GPUs have finished.
    """
    if len(gpus) == 1:
        yield from work(gpus[0])
        return
    found: queue.SimpleQueue[R | None] = queue.SimpleQueue()

    def lane(gpu: str) -> None:
        try:
            for result in work(gpu):
                found.put(result)
        finally:
            found.put(None)

    with ThreadPoolExecutor(len(gpus)) as pool:
        lanes = [pool.submit(lane, gpu) for gpu in gpus]
        running = len(lanes)
        while running:
            result = found.get()
            if result is None:
                running -= 1
            else:
                yield result
        for future in lanes:
            future.result()
