"""Runs kernels in Triton's dialect Gluon on a CPU: roles are threads, which wait for each other at barriers with
phases as those of the device have.

What is simulated is what can go wrong in a kernel's own text: which stage is filled and read when, and
arithmetic. Layouts are not: blocks are tensors. A role that waits for ever ends the run with an error.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from coilwork_ir.kernel_source import KernelSource

_PATIENCE = 20.0


class Stuck(Exception):
    """A role waits for what nobody does."""


@dataclass
class Pointer:
    """An element, or a block of elements, of a tensor in one row."""

    memory: Tensor
    offset: Any = 0

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=self.memory.dtype)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.offset + offset)


@dataclass
class Barrier:
    """A barrier in shared memory: it changes its phase when so many have arrived and all bytes came."""

    count: int = 0
    waiting: int = 0
    bytes: int = 0
    phase: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def update(self, *, arrivals: int = 0, bytes_: int = 0) -> None:
        with self.changed:
            self.waiting -= arrivals
            self.bytes += bytes_
            assert self.waiting >= 0, "more arrive than are waited for"
            if self.waiting == 0 and self.bytes == 0:
                self.phase ^= 1
                self.waiting = self.count
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.phase != parity, timeout=_PATIENCE):
                raise Stuck(f"phase {parity} does not end")


@dataclass
class Memory:
    """Blocks in shared memory, or barriers."""

    data: Any

    def index(self, number: int) -> Any:
        return self.data[number] if isinstance(self.data, list) else Memory(self.data[number])

    def reshape(self, extents: Sequence[int]) -> Memory:
        return Memory(self.data.view(tuple(extents)))

    def permute(self, axes: Sequence[int]) -> Memory:
        return Memory(self.data.permute(tuple(axes)))

    def store(self, value: Tensor) -> None:
        self.data.copy_(value)


@dataclass
class Descriptor:
    """A tensor in memory that the copy engine knows."""

    pointer: Pointer
    shape: list[int]
    strides: list[int]
    block: list[int]
    layout: Any

    @property
    def dtype(self) -> torch.dtype:
        return self.pointer.memory.dtype

    def view(self) -> Tensor:
        memory = self.pointer.memory
        return memory.as_strided(self.shape, self.strides, int(self.pointer.offset))

    def places(self, start: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Where a block lies, and which part of it does."""
        ends = [min(s + b, n) for s, b, n in zip(start, self.block, self.shape, strict=True)]
        outer = tuple(slice(s, e) for s, e in zip(start, ends, strict=True))
        return outer, tuple(slice(0, max(0, e - s)) for s, e in zip(start, ends, strict=True))


def _fetch(blocks: Descriptor, place: Sequence[int], barrier: Barrier, target: Memory) -> None:
    outer, inner = blocks.places(place)
    target.data.zero_()
    target.data[inner] = blocks.view()[outer]
    barrier.update(bytes_=-target.data.numel() * target.data.element_size())


def _send(blocks: Descriptor, place: Sequence[int], source: Memory) -> None:
    outer, inner = blocks.places(place)
    blocks.view()[outer] = source.data[inner]


def _multiply(left: Any, right: Memory, total: Tensor, *, use_acc: bool = True, is_async: bool) -> Tensor:
    first = left.data if isinstance(left, Memory) else left
    product = first.float() @ right.data.float()
    return total + product if use_acc else product


def _wait_for_products(pending: int, deps: Sequence[Tensor]) -> Any:
    return deps[0] if len(deps) == 1 else tuple(deps)


def _initialise(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.waiting = count


def _allocate(dtype: Any, extents: Sequence[int], layout: Any) -> Memory:
    if layout == "barriers":
        return Memory([Barrier() for _ in range(extents[0])])
    # what nobody wrote is to be seen in results
    return Memory(torch.full(tuple(extents), float("nan"), dtype=dtype))


def _specialise(roles: Sequence[tuple[Callable[..., None], tuple[Any, ...]]], warps: Any, regs: Any) -> None:
    errors: list[BaseException] = []
    programs = _PROGRAM.number

    def run(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        _PROGRAM.number = programs
        try:
            function(*arguments)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=role, daemon=True) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _PATIENCE)
    if errors:
        raise errors[0]


_PROGRAM = threading.local()


def _load(pointer: Pointer, mask: Any = None, other: Any = 0, **options: Any) -> Any:
    if not isinstance(pointer.offset, Tensor):
        return pointer.memory[pointer.offset].item()
    places = pointer.offset if mask is None else torch.where(mask, pointer.offset, 0)
    found = pointer.memory[places.long()]
    return found if mask is None else torch.where(mask, found, torch.as_tensor(other, dtype=found.dtype))


def _store(pointer: Pointer, value: Tensor, mask: Any = None) -> None:
    places, value = torch.broadcast_tensors(pointer.offset, value)
    if mask is not None:
        keep = mask.broadcast_to(places.shape)
        places, value = places[keep], value[keep]
    pointer.memory[places.long()] = value.to(pointer.memory.dtype)


def _where(condition: Any, first: Any, second: Any) -> Any:
    if not isinstance(condition, Tensor):
        return first if condition else second
    return torch.where(condition, first, second)


def _pick(function: Callable[..., Tensor], scalar: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        if not isinstance(left, Tensor) and not isinstance(right, Tensor):
            return scalar(left, right)
        return function(torch.as_tensor(left), torch.as_tensor(right))

    return apply


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) else value


def _full(extents: Sequence[int], value: Any, dtype: torch.dtype, layout: Any = None) -> Tensor:
    return torch.full(tuple(extents), value, dtype=dtype)


def _name_nothing(*arguments: Any, **options: Any) -> None:
    return None


def _modules(programs: int) -> Mapping[str, ModuleType]:
    types = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "int32", "int64")}

    def module(name: str, **members: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(members)
        return made

    language = module(
        "triton.language",
        **types,
        constexpr=object,
        program_id=lambda axis: _PROGRAM.number,
        num_programs=lambda axis: programs,
        cdiv=lambda a, b: -(-a // b),
        minimum=_pick(torch.minimum, min),
        maximum=_pick(torch.maximum, max),
        where=_where,
        exp2=torch.exp2,
        log2=torch.log2,
        load=_load,
        store=_store,
        cast=_cast,
    )
    shared = SimpleNamespace(get_default_for=_name_nothing)
    gluon_language = module(
        "language",
        **types,
        constexpr=object,
        arange=lambda first, last, layout=None: torch.arange(first, last, dtype=torch.int32),
        full=_full,
        convert_layout=lambda value, layout: value,
        max=lambda value, axis: value.amax(axis),
        sum=lambda value, axis: value.sum(axis),
        static_range=range,
        allocate_shared_memory=_allocate,
        warp_specialize=_specialise,
        NVMMASharedLayout=shared,
        NVMMADistributedLayout=_name_nothing,
        SliceLayout=_name_nothing,
        DotOperandLayout=_name_nothing,
    )
    hopper = module(
        "hopper",
        tma=SimpleNamespace(
            make_tensor_descriptor=Descriptor,
            async_copy_global_to_shared=_fetch,
            async_copy_shared_to_global=_send,
            store_wait=_name_nothing,
        ),
        mbarrier=SimpleNamespace(
            MBarrierLayout=lambda: "barriers",
            init=_initialise,
            expect=lambda barrier, size: barrier.update(arrivals=1, bytes_=size),
            arrive=lambda barrier, count: barrier.update(arrivals=count),
            wait=lambda barrier, phase: barrier.wait(phase),
        ),
        warpgroup_mma=_multiply,
        warpgroup_mma_wait=_wait_for_products,
        fence_async_shared=_name_nothing,
    )
    gluon = module("gluon", jit=lambda function: function, language=gluon_language)
    found = {
        "triton": module("triton", jit=lambda function: function, language=language),
        "triton.language": language,
        "triton.experimental": module("triton.experimental", gluon=gluon),
        "triton.experimental.gluon": gluon,
        "triton.experimental.gluon.language": gluon_language,
        "triton.experimental.gluon.language.nvidia": module("nvidia", hopper=hopper),
    }
    return found


@contextmanager
def _in_place(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    kept = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def simulate(source: KernelSource, tensors: Sequence[Tensor], folder: Path, *, programs: int) -> None:
    """Run `source` with its first launch and `programs` programs, one after the other, on `tensors`, which it
    changes.
    """
    path = folder / f"{source.name}.py"
    path.write_text(source.text)
    specification = importlib.util.spec_from_file_location(source.name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with _in_place(_modules(programs)):
        specification.loader.exec_module(module)
        function = getattr(module, source.entry)
        for number in range(programs):
            _PROGRAM.number = number
            function(*(Pointer(tensor) for tensor in tensors), **dict(source.configs[0].meta))
