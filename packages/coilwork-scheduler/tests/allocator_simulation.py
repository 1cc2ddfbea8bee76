"""An allocator that walks a program instead of running it."""

from __future__ import annotations

from collections.abc import Collection

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.index import as_int
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    ExternCall,
    Free,
    Launch,
    PoolView,
    Program,
    Reinterpret,
    Return,
    Reuse,
)


def measured_peak(program: Program, *, granule: int = 1, counted: Collection[str] = ()) -> int:
    """Walk the program as an allocator would see it; every rule about names is asserted on the way.

    Each allocation takes a multiple of `granule` bytes; so do the inputs that are `counted`, which others are
    not.
    """
    owner: dict[str, int] = {}
    size: dict[int, int] = {}
    given: set[int] = set()
    holders: dict[int, set[str]] = {}
    freed: set[str] = set()
    live = peak = 0
    # pools: their storage, and the piece of a storage that a name has
    pools: dict[str, int] = {}
    pieces: dict[str, tuple[int, int]] = {}

    def carve(buffer: Buffer, pool: str, offset: int) -> None:
        storage = pools[pool]
        piece = (offset, offset + size_of(buffer))
        assert offset % 64 == 0 and piece[1] <= size[storage]
        for other in holders[storage]:
            if other in pieces:
                start, end = pieces[other]
                assert end <= piece[0] or piece[1] <= start, f"{buffer.name} lies where {other} is"
        define(buffer.name, storage)
        pieces[buffer.name] = piece

    def size_of(buffer: Buffer) -> int:
        found = as_int(buffer.span)
        assert found is not None
        return found * buffer.dtype.itemsize

    def define(name: str, storage: int) -> None:
        assert name not in owner, f"{name} defined twice"
        owner[name] = storage
        holders.setdefault(storage, set()).add(name)

    def use(name: str) -> None:
        assert name in owner and name not in freed, f"{name} used while not alive"

    def fresh(buffer: Buffer, *, counted: bool) -> None:
        nonlocal live, peak
        storage = len(size)
        size[storage] = size_of(buffer)
        if counted:
            size[storage] = -(-size[storage] // granule) * granule
            live += size[storage]
        else:
            given.add(storage)
        peak = max(peak, live)
        define(buffer.name, storage)

    def drop(name: str) -> None:
        nonlocal live
        use(name)
        freed.add(name)
        storage = owner[name]
        holders[storage].discard(name)
        if not holders[storage] and storage not in given:
            live -= size[storage]

    for entry in program.inputs:
        if isinstance(entry, Buffer):
            fresh(entry, counted=entry.name in counted)
    for instruction in program.instructions:
        match instruction:
            case Alloc():
                fresh(instruction.buffer, counted=True)
            case AllocPool():
                storage = len(size)
                found = as_int(instruction.size_bytes)
                assert found is not None
                size[storage] = found
                live += found
                peak = max(peak, live)
                define(instruction.pool, storage)
                pools[instruction.pool] = storage
            case PoolView():
                offset = as_int(instruction.offset_bytes)
                assert offset is not None
                use(instruction.pool)
                carve(instruction.buffer, instruction.pool, offset)
            case Reuse():
                use(instruction.source)
                storage = owner[instruction.source]
                if instruction.source in pieces:
                    start, end = pieces[instruction.buffer.name] = pieces[instruction.source]
                    assert end - start == size_of(instruction.buffer)
                else:
                    assert size[storage] == -(-size_of(instruction.buffer) // granule) * granule
                define(instruction.buffer.name, storage)
                freed.add(instruction.source)
                holders[storage].discard(instruction.source)
            case Reinterpret():
                use(instruction.source)
                define(instruction.buffer.name, owner[instruction.source])
                if instruction.source in pieces:
                    pieces[instruction.buffer.name] = pieces[instruction.source]
            case Launch():
                for name in instruction.args:
                    use(name)
            case ExternCall():
                for value in instruction.args:
                    if isinstance(value, Ref):
                        use(value.name)
                for _, name in instruction.out:
                    use(name)
                for output in instruction.outputs:
                    if isinstance(output, Buffer):
                        fresh(output, counted=True)
            case Free():
                for name in instruction.names:
                    drop(name)
            case Return():
                for result in instruction.values:
                    if isinstance(result, Ref):
                        use(result.name)
            case _:
                pass
    return peak
