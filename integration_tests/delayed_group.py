"""A process group in one process whose operations run when somebody waits for them, and not before.

It stands for a network that is slow: an operand that is overwritten or freed before the wait shows in every
run. What other processes would send is the operand plus their rank, so each result is a function of the
operand alone. Until the wait, results hold nan, or the largest integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Tensors = Sequence[Tensor]
RANKS = 3


class Freed(RuntimeError):
    """An operand's memory was given back before the wait."""


class _Operand:
    """Memory that an operation reads when it runs. Without `holds`, nobody but the program keeps it until
    then.
    """

    def __init__(self, tensor: Tensor, holds: bool) -> None:
        self._layout = (tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride())
        self._held = tensor if holds else None
        self._storage = StorageWeakRef(tensor.untyped_storage())

    def read(self) -> Tensor:
        if self._held is not None:
            return self._held
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            raise Freed("the operand of a collective was freed before the wait")
        dtype, offset, size, stride = self._layout
        return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)


class _Work(torch._C._distributed_c10d.Work):
    """An operation that runs in `wait`."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._run = run
        self._is_done = False

    def wait(self, timeout: object = None) -> bool:
        if not self._is_done:
            self._is_done = True
            self._run()
        return True


def _poison(result: Tensor) -> None:
    result.fill_(torch.nan if result.is_floating_point() else torch.iinfo(result.dtype).max)


class DelayedGroup(dist.ProcessGroup):
    """Rank 0 of `RANKS`. Its methods have the names that torch 2.11 to 2.13 call."""

    def __init__(self) -> None:
        super().__init__(0, RANKS)
        self.holds = True
        self.started = 0

    def _start(
        self, results: Tensors, operands: Tensors, compute: Callable[[Tensor, Tensor], None], *, inplace: bool
    ) -> _Work:
        self.started += 1
        kept = [_Operand(operand, self.holds or inplace) for operand in operands]
        targets = list(results)
        if not inplace:
            for target in targets:
                _poison(target)

        def run() -> None:
            for target, operand in zip(targets, kept, strict=True):
                compute(target, operand.read())

        return _Work(run)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> _Work:
        return self._start(tensors, tensors, _sum, inplace=True)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> _Work:
        return self._start(tensors, tensors, _sum, inplace=True)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> _Work:
        rank = int(opts.rootRank)
        return self._start(tensors, tensors, lambda out, given: _add(out, given, rank), inplace=True)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> _Work:
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, given: Tensors, opts: Any = None) -> _Work:
        return self._start(outputs, given, _gather, inplace=False)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> _Work:
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, given: Tensors, opts: Any = None) -> _Work:
        return self._start(outputs, given, _scatter, inplace=False)

    def all_to_all_single(
        self, output: Tensor, given: Tensor, output_sizes: Any = None, sizes: Any = None, opts: Any = None
    ) -> _Work:
        return self._start([output], [given], _exchange, inplace=False)

    def send(self, tensors: Tensors, rank: int, tag: int) -> _Work:
        return self._start([], [], _add_nothing, inplace=False)

    def recv(self, tensors: Tensors, rank: int, tag: int) -> _Work:
        return self._start(tensors, tensors, lambda out, given: _fill(out, rank), inplace=True)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def size(self) -> int:
        return RANKS

    @property
    def group_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    def getBackendName(self) -> str:
        return "delayed"


def _sum(out: Tensor, given: Tensor) -> None:
    out.copy_(given * RANKS + sum(range(RANKS)))


def _add(out: Tensor, given: Tensor, rank: int) -> None:
    out.copy_(given + rank)


def _fill(out: Tensor, rank: int) -> None:
    out.fill_(rank + 1)


def _add_nothing(out: Tensor, given: Tensor) -> None:
    return None


def _gather(out: Tensor, given: Tensor) -> None:
    out.copy_(torch.cat([given.reshape(-1) + rank for rank in range(RANKS)]).view(out.shape))


def _scatter(out: Tensor, given: Tensor) -> None:
    _sum(out, given[: out.shape[0]])


def _exchange(out: Tensor, given: Tensor) -> None:
    rows = given[torch.arange(out.shape[0]) % max(given.shape[0], 1)]
    out.copy_(rows + torch.arange(out.shape[0], dtype=out.dtype).view(-1, *[1] * (out.dim() - 1)))


@contextmanager
def delayed_group() -> Iterator[DelayedGroup]:
    """The default group of this process, called "0"."""
    made: list[DelayedGroup] = []

    def create(store: object, rank: int, size: int, timeout: object) -> DelayedGroup:
        made.append(DelayedGroup())
        return made[-1]

    if "delayed" not in dist.Backend.backend_list:
        dist.Backend.register_backend("delayed", lambda *given: _CREATE[0](*given), devices=["cpu", "cuda"])
    _CREATE[:] = [create]
    dist.init_process_group("delayed", rank=0, world_size=RANKS, store=dist.HashStore())
    try:
        yield made[0]
    finally:
        dist.destroy_process_group()


_CREATE: list[Callable[..., DelayedGroup]] = []
