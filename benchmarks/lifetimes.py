"""Which buffers of a program are live when most memory is, by the program's own account."""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_int
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    ExternCall,
    Free,
    PoolView,
    Program,
    Reinterpret,
    Reuse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Memory that one instruction allocated: its bytes, and the buffers that have lived in it."""

    buffers: tuple[str, ...]
    size_bytes: int
    made_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most memory at a time, after which instruction, and its blocks, the largest first."""

    size_bytes: int
    instruction: int
    blocks: tuple[Block, ...]


def peak_of(program: Program) -> Peak:
    """Return when `program` has most memory allocated; its inputs are not counted. ValueError if a size is
    not known.
    """
    blocks: dict[str, Block] = {}
    home: dict[str, str] = {}
    holders: dict[str, set[str]] = {}
    best = Peak(size_bytes=0, instruction=0, blocks=())

    def enter(name: str, block: str) -> None:
        home[name] = block
        holders[block].add(name)
        before = blocks[block]
        if name not in before.buffers:
            blocks[block] = Block(
                buffers=(*before.buffers, name), size_bytes=before.size_bytes, made_by=before.made_by
            )

    def allocate(name: str, size_bytes: int, made_by: str) -> None:
        blocks[name] = Block(buffers=(), size_bytes=size_bytes, made_by=made_by)
        holders[name] = set()
        enter(name, name)

    def leave(name: str) -> None:
        block = home.pop(name, None)
        if block is not None:
            holders[block].discard(name)
            if not holders[block]:
                del blocks[block], holders[block]

    for position, instruction in enumerate(program.instructions):
        match instruction:
            case Alloc(buffer=buffer):
                allocate(buffer.name, _bytes(buffer), "Alloc")
            case AllocPool(pool=pool, size_bytes=size):
                allocate(pool, _evaluate_size(size), "AllocPool")
            case ExternCall(outputs=outputs, target=target):
                for output in outputs:
                    if isinstance(output, Buffer):
                        allocate(output.name, _bytes(output), target)
            case Reuse(buffer=buffer, source=source) if source in home:
                enter(buffer.name, home[source])
                leave(source)
            case Reinterpret(buffer=buffer, source=source) if source in home:
                enter(buffer.name, home[source])
            case PoolView(buffer=buffer, pool=pool):
                enter(buffer.name, pool)
            case Free(names=names):
                for name in names:
                    leave(name)
            case _:
                pass
        total = sum(block.size_bytes for block in blocks.values())
        if total > best.size_bytes:
            largest = sorted(blocks.values(), key=lambda block: -block.size_bytes)
            best = Peak(size_bytes=total, instruction=position, blocks=tuple(largest))
    return best


def _bytes(buffer: Buffer) -> int:
    size = buffer.dtype.itemsize
    for extent in buffer.shape:
        size *= _evaluate_size(extent)
    return size


def _evaluate_size(size: Expr) -> int:
    found = as_int(size)
    if found is None:
        raise ValueError(f"the size {size!r} is not known before the call")
    return found
