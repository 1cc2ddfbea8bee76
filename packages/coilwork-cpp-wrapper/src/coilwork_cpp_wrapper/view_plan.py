"""Decide which names of a program need a tensor, and which are an address in the memory of another name's
tensor.

A tensor costs an allocation and a reference when it is made, and both again when it goes. Kernels read
addresses alone. So a view that only kernels and other views read is an address (a *bare* view). Its memory is
kept by the tensor of the name that it lies in, its *root*, which is released when the last of them has ended.
A program is a straight line: who holds memory at each instruction is known before it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from coilwork_ir.buffers import Argument, Buffer, Item, ListValue, Ref
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    BindSymbol,
    CheckLayout,
    CondCall,
    Free,
    Instruction,
    LoopCall,
    PoolView,
    Program,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_ir.program.walk import find_call, index_buffers

View = PoolView | Reinterpret | Reuse
_START = as_expr(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The beginning of a name's memory.

    Attributes:
        root: the name whose tensor keeps it.
        offset_bytes: from the root's first byte.
        is_own: the root is memory that the program has allocated, so it begins where its storage does.
        elements: from the root's first element; None if the root has other elements, or an own type between.
    """

    root: str
    offset_bytes: Expr = _START
    is_own: bool = False
    elements: Expr | None = _START


@dataclass(slots=True, kw_only=True)
class ViewPlan:
    """The way in which each name of one program is held.

    Attributes:
        places: of every buffer and pool; a name with a tensor is its own root.
        seen: of a view that has a tensor though what it views has none, where it begins.
        bare: names that are an address.
        moved: of an instruction, by its number, the name whose tensor the defined one takes over.
        released: of an instruction, by its number, the names whose tensors go behind it.
    """

    places: dict[str, Place] = field(default_factory=dict)
    seen: dict[str, Place] = field(default_factory=dict)
    bare: set[str] = field(default_factory=set)
    moved: dict[int, str] = field(default_factory=dict)
    released: dict[int, tuple[str, ...]] = field(default_factory=dict)


def plan_views(program: Program) -> ViewPlan:
    """Return the plan of `program`; programs nested in it have their own."""
    buffers, aligned = index_buffers(program), _list_aligned(program)
    wanted = _list_tensor_uses(program.instructions)
    while True:
        planner = _Planner(buffers, aligned, wanted)
        plan = planner.plan(program)
        if not planner.missing:
            return plan
        wanted |= planner.missing


class _Planner:
    """One attempt. `missing`: names that turn out to need a tensor, too."""

    def __init__(self, buffers: Mapping[str, Buffer], aligned: frozenset[str], wanted: set[str]) -> None:
        self.missing: set[str] = set()
        self._buffers = buffers
        self._aligned = aligned
        self._wanted = wanted
        self._plan = ViewPlan(places={name: Place(root=name) for name in buffers})
        # of each root, the bare views of it that have not ended; and the roots that ended before these
        self._holders: dict[str, set[str]] = {}
        self._ended: set[str] = set()

    def plan(self, program: Program) -> ViewPlan:
        plan = self._plan
        for number, instruction in enumerate(program.instructions):
            match instruction:
                case Alloc(buffer=buffer):
                    plan.places[buffer.name] = Place(root=buffer.name, is_own=True)
                case AllocPool(pool=pool):
                    plan.places[pool] = Place(root=pool, is_own=True, elements=None)
                case PoolView() | Reinterpret() | Reuse():
                    self._view(number, instruction)
                case Free(names=names):
                    plan.released[number] = tuple(self._end(names))
                case _:
                    pass
        return plan

    def _view(self, number: int, view: View) -> None:
        plan, name, source = self._plan, view.buffer.name, get_source(view)
        place = self._place(view)
        if name not in self._wanted:
            if self._reads_bits(view) and source not in self._aligned:
                # torch says if memory that begins anywhere can be read as elements of another type
                self.missing |= {name, source}
            plan.bare.add(name)
            plan.places[name] = place
            self._holders.setdefault(place.root, set()).add(name)
        elif isinstance(view, Reuse) and (mover := self._find_mover(view, place)) is not None:
            plan.moved[number] = mover
            plan.places[name] = Place(root=name, is_own=place.is_own)
            self._holders.pop(mover, None)
            self._ended.discard(mover)
            return
        elif source in plan.bare:
            if not place.is_own and place.elements is None:
                self.missing.add(source)
            plan.seen[name] = place
        if isinstance(view, Reuse):
            plan.released[number] = tuple(self._end((source,)))

    def _place(self, view: View) -> Place:
        """Return where `view` begins, counted from the root of its source."""
        base = self._plan.places[get_source(view)]
        if isinstance(view, PoolView):
            offset, elements = view.offset_bytes, None
        else:
            count = view.offset if isinstance(view, Reinterpret) else _START
            offset = count * view.buffer.dtype.itemsize
            known = base.elements is not None and not self._reads_bits(view)
            elements = base.elements + count if known and base.elements is not None else None
        return Place(
            root=base.root, offset_bytes=base.offset_bytes + offset, is_own=base.is_own, elements=elements
        )

    def _reads_bits(self, view: View) -> bool:
        return not isinstance(view, PoolView) and self._buffers[view.source].dtype is not view.buffer.dtype

    def _find_mover(self, reuse: Reuse, place: Place) -> str | None:
        """Return the name whose tensor the reusing one can have: of its layout, and of no use to anybody
        else.
        """
        root, buffer = self._buffers.get(place.root), reuse.buffer
        others = self._holders.get(place.root, set()) - {reuse.source}
        if root is None or place.offset_bytes != _START or others:
            return None
        if (root.dtype, root.shape, root.strides) != (buffer.dtype, buffer.shape, buffer.strides):
            return None
        return root.name if root.name == reuse.source or root.name in self._ended else None

    def _end(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the tensors that go when `names` end."""
        for name in names:
            root = self._plan.places[name].root
            if name in self._plan.bare:
                self._holders[root].discard(name)
            else:
                self._ended.add(root)
            if root in self._ended and not self._holders.get(root):
                self._ended.discard(root)
                yield root


def get_source(view: View) -> str:
    """Return the name of the buffer or pool that `view` lies in."""
    return view.pool if isinstance(view, PoolView) else view.source


def _list_aligned(program: Program) -> frozenset[str]:
    """Names that begin where the program's own memory does, or a part of a pool, whatever is between."""
    aligned: set[str] = set()
    for instruction in program.instructions:
        match instruction:
            case Alloc(buffer=buffer) | PoolView(buffer=buffer):
                aligned.add(buffer.name)
            case Reuse(buffer=buffer, source=source) if source in aligned:
                aligned.add(buffer.name)
            case Reinterpret(buffer=buffer, source=source, offset=offset):
                if source in aligned and offset == _START:
                    aligned.add(buffer.name)
            case _:
                pass
    return frozenset(aligned)


def _list_tensor_uses(instructions: Iterable[Instruction]) -> set[str]:
    """Names that something else than a kernel or a view reads: it is given a tensor."""
    used: set[str] = set()
    for instruction in instructions:
        if (call := find_call(instruction)) is not None:
            values = (*call.args, *(value for _, value in call.kwargs))
            used |= {*_list_names(values), *(name for _, name in call.out)}
            continue
        match instruction:
            case BindSymbol(buffer=name) | CheckLayout(buffer=name):
                used.add(name)
            case CondCall():
                used |= {instruction.predicate, *_list_names(instruction.operands)}
            case LoopCall():
                used |= set(_list_names((*instruction.carried, *instruction.extra)))
            case SubprogramCall():
                used |= set(_list_names(instruction.operands))
            case Return():
                used |= {value.name for value in instruction.values if isinstance(value, Ref)}
            case _:
                pass
    return used


def _list_names(values: Iterable[Argument]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Ref | Item):
            yield value.name
        elif isinstance(value, ListValue):
            yield from _list_names(value.items)
