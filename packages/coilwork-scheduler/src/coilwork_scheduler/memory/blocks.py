"""Blocks: the memory that a program allocates, from the instruction that defines it to the one
that frees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from coilwork_ir.buffers import Buffer, Ref, references
from coilwork_ir.index import Const, Expr, Mul, as_expr, node, product
from coilwork_ir.operators import find_target_info
from coilwork_ir.program.nodes import (
    Alloc,
    CondCall,
    ExternCall,
    Free,
    Program,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
    WhileCall,
)
from coilwork_scheduler.memory.packing import ALIGNMENT
from coilwork_scheduler.memory.storage import StorageTable

Bytes: TypeAlias = tuple[int, ...]
"""Bytes as coefficients: how many times each of the products of sizes that occur in the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Memory that the program has, from the instruction that defines it to the one that frees it, which it is
    not alive in.

    Attributes:
        root: the buffer that is allocated.
        size: as the peak counts it.
        product: number of the product that a member's size is a multiple of; -1 for what is no candidate.
        given: the caller allocated it and gives it away: it is there from the beginning, and no part of the
            program's peak.
    """

    root: Buffer
    start: int
    end: int
    size: Bytes
    product: int
    given: bool = False

    @property
    def device(self) -> str:
        """Return where it is."""
        return self.root.device


def blocks_of(program: Program, table: StorageTable, products: dict[Expr, int]) -> list[Block]:
    """All memory that `program` comes to have, what it is given first, in the order of definition; fills
    `products`.
    """
    groups = _Groups(len(table.storages))
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    allocated: set[int] = set()
    for number, instruction in enumerate(program.instructions):
        match instruction:
            case Alloc(buffer=buffer):
                starts[table.of[buffer.name]] = number
                allocated.add(table.of[buffer.name])
            case Reuse(buffer=buffer, source=source) | Reinterpret(buffer=buffer, source=source):
                groups.join(table.of[source], table.of[buffer.name])
            case ExternCall() | CondCall() | WhileCall() | SubprogramCall():
                for output in instruction.outputs:
                    if isinstance(output, Buffer):
                        starts.setdefault(table.of[output.name], number)
            case Free(names=names):
                # the last one counts: an input whose memory a result took over is freed by name only
                for name in names:
                    ends[groups.first(table.of[name])] = number
            case Return(values=values):
                for value in values:
                    if isinstance(value, Ref):
                        ends.pop(groups.first(table.of[value.name]), None)
            case _:
                pass
    kept = _kept(program, table)
    outside = {groups.first(position) for position in kept}
    given = {
        groups.first(p) for p, s in enumerate(table.storages) if s.owner in ("input", "donated", "constant")
    }
    made = [
        Block(
            root=storage.root,
            start=0,
            end=ends.get(position, len(program.instructions)),
            size=_size(storage.size_bytes, products)[0],
            product=-1,
            given=True,
        )
        for position, storage in enumerate(table.storages)
        if storage.owner == "donated"
    ]
    for position, start in sorted(starts.items(), key=lambda item: item[1]):
        if groups.first(position) != position or position in given:
            continue
        end = ends.get(position, len(program.instructions))
        size, which = _size(table.storages[position].size_bytes, products)
        free = position in allocated and position not in outside and position in ends
        made.append(
            Block(
                root=table.storages[position].root,
                start=start,
                end=end,
                size=size,
                product=which if free else -1,
            )
        )
    return made


def _kept(program: Program, table: StorageTable) -> frozenset[int]:
    """Storages that are returned, or seen by an operator that might keep them or that counts from where they
    begin.

    Results of ATen's operators that share an operand's memory are known (`Extern.aliases`), and belong to its
    storage.
    """
    names: list[str] = []
    for instruction in program.instructions:
        if isinstance(instruction, ExternCall) and (
            instruction.in_flight or not _takes_any_memory(instruction.target)
        ):
            given = (*instruction.args, *(value for _, value in instruction.kwargs))
            names += [name for value in given for name in references(value)]
            names += [name for _, name in instruction.out]
        if isinstance(instruction, Return):
            names += [value.name for value in instruction.values if isinstance(value, Ref)]
    retained = (position for position, storage in enumerate(table.storages) if storage.retained)
    return frozenset((*(table.of[name] for name in names), *retained))


def _takes_any_memory(target: str) -> bool:
    return target.startswith("aten.") and not find_target_info(target).counts_from_storage


class _Groups:
    """Storages whose memory was handed on from one to the other; the first to have it stands for them."""

    def __init__(self, count: int) -> None:
        self._before = list(range(count))

    def first(self, position: int) -> int:
        """The storage that had the memory first."""
        while self._before[position] != position:
            self._before[position] = self._before[self._before[position]]
            position = self._before[position]
        return position

    def join(self, source: int, position: int) -> None:
        """`position` has the memory of `source` now."""
        if source != position:
            self._before[self.first(position)] = self.first(source)


def _size(size_bytes: Expr, products: dict[Expr, int]) -> tuple[Bytes, int]:
    """The coefficients of a size, and the number of its product if a member of a pool may have such a size,
    else -1.
    """
    factor, of = _split(size_bytes)
    number = products.setdefault(of, len(products))
    if number == 0:
        factor = -(-factor // ALIGNMENT) * ALIGNMENT
    places = factor > 0 and factor % ALIGNMENT == 0
    return (0,) * number + (factor,), number if places else -1


def _split(size: Expr) -> tuple[int, Expr]:
    """`size` as a number times an expression; 1 times itself if it is no product."""
    match node(size):
        case Const(value):
            return value, as_expr(1)
        case Mul((first, *rest)):
            match node(first):
                case Const(value) if value > 0:
                    return value, product(rest)
    return 1, size
