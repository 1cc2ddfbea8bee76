"""Results of operators that torch marks as negated or conjugated, and the calls that make memory hold them.

torch's own operators tell at compile time which results are marked. Others may return a marked one where
their meta functions are silent, and kernels do not look at marks. What kernels read of such a result is
therefore made by a call behind the operator, which copies what is marked and gives back the rest as it is.
What the caller gets keeps its mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, GraphOutput, Ref, list_references
from coilwork_ir.program.nodes import (
    BindSymbol,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    Launch,
    LoopCall,
    Program,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_ir.program.walk import index_buffers, may_write_operands
from coilwork_ir.streams import Copy

# Their results are known, or are not there yet.
_KNOWN: Final = frozenset(
    ("aten", "prims", "mkldnn", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d")
)


def resolve_marks(program: Program, *, kept: int | None = 0) -> Program:
    """`program` with calls that resolve what may be marked, as far as kernels, operators or its caller read
    it.

    The first `kept` results (`None`: all) may come back marked, as the operator gave them. Nested programs
    are left as they are.
    """
    calls = [
        call for call in program.instructions if isinstance(call, ExternCall) and list(_list_markable(call))
    ]
    if not calls:
        return program
    return _Resolution(program=program, uses=_find_uses(program, kept), kept=kept).run()


def _list_markable(call: ExternCall) -> Iterator[Buffer]:
    """Yield the results of `call` that may be marked."""
    if call.target.partition(".")[0] in _KNOWN or call.in_flight:
        return
    for output in call.outputs:
        if isinstance(output, Buffer) and (output.dtype.is_float or output.dtype.is_complex):
            yield output


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uses:
    """The uses of a program's buffers.

    Attributes:
        read: those that something other than a view or the caller reads.
        written: those that may be written to after they were made.
        shown: those that the caller may get marked.
        views: the views of each.
    """

    read: frozenset[str]
    written: frozenset[str]
    shown: frozenset[str]
    views: Mapping[str, tuple[Reinterpret, ...]]

    def is_written(self, name: str) -> bool:
        """Tell if `name` may be written to, or a view of it."""
        return name in self.written or any(self.is_written(view.buffer.name) for view in self.views_of(name))

    def is_read(self, buffer: Buffer, *, is_markable: bool = True) -> bool:
        """Tell if somebody needs `buffer`, or a view of it, without a mark.

        A view of another type shows memory, and cannot be marked.
        """
        if buffer.name in self.read or (buffer.name in self.shown and not is_markable):
            return True
        return any(
            self.is_read(view.buffer, is_markable=is_markable and view.buffer.dtype == buffer.dtype)
            for view in self.views_of(buffer.name)
        )

    def is_shown(self, buffer: Buffer) -> bool:
        """Tell if the caller gets `buffer`, or a view of it, with a mark."""
        return buffer.name in self.shown or any(
            view.buffer.dtype == buffer.dtype and self.is_shown(view.buffer)
            for view in self.views_of(buffer.name)
        )

    def is_returned(self, name: str) -> bool:
        """Tell if the caller gets `name` or a view of it, of whatever type."""
        return name in self.shown or any(self.is_returned(view.buffer.name) for view in self.views_of(name))

    def views_of(self, name: str) -> tuple[Reinterpret, ...]:
        return self.views.get(name, ())


def _find_uses(program: Program, kept: int | None) -> _Uses:
    read: set[str] = set()
    written: set[str] = set()
    shown: set[str] = set()
    views: dict[str, tuple[Reinterpret, ...]] = {}
    roles = {kernel.name: tuple(arg.role for arg in kernel.args) for kernel in program.kernels}
    for instruction in program.instructions:
        match instruction:
            case Launch(kernel=kernel, args=args):
                read.update(args)
                written.update(name for name, role in zip(args, roles[kernel], strict=True) if role != "in")
            case ExternCall():
                names = _operands(*instruction.args, *(value for _, value in instruction.kwargs))
                into = [name for _, name in instruction.out]
                read.update(names, into)
                written.update(names if may_write_operands(instruction) else (), into)
            case CondCall():
                read.update(names := [*_operands(*instruction.operands), instruction.predicate])
                written.update(names)
            case LoopCall():
                read.update(names := _operands(*instruction.carried, *instruction.extra))
                written.update(names)
            case SubprogramCall():
                read.update(names := _operands(*instruction.operands))
                written.update(names)
            case Copy(source=source, target=target):
                read.update((source, target))
                written.add(target)
            case Reuse(source=source):
                read.add(source)
                written.add(source)
            case BindSymbol(buffer=buffer):
                read.add(buffer)
            case Reinterpret(source=source):
                views[source] = (*views.get(source, ()), instruction)
            case Return(values=values):
                count = len(values) if kept is None else kept
                shown.update(_operands(*values[:count]))
                read.update(_operands(*values[count:]))
    return _Uses(read=frozenset(read), written=frozenset(written), shown=frozenset(shown), views=views)


def _operands(*arguments: Argument) -> list[str]:
    return [name for argument in arguments for name in list_references(argument)]


@dataclass(slots=True, kw_only=True)
class _Resolution:
    """One walk over a program: `names` are the marked ones of buffers that the caller gets so, `gone` what is
    not made.
    """

    program: Program
    uses: _Uses
    kept: int | None
    names: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    known: Mapping[str, Buffer] = field(init=False)
    used: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.known = index_buffers(self.program)
        self.used = set(self.known)

    def run(self) -> Program:
        instructions = [
            step for instruction in self.program.instructions for step in self._convert(instruction)
        ]
        return replace(self.program, instructions=tuple(instructions))

    def _convert(self, instruction: Instruction) -> Iterator[Instruction]:
        match instruction:
            case ExternCall():
                yield from self._call(instruction)
            case Reinterpret(buffer=buffer, source=source) if source in self.names:
                is_markable = buffer.dtype == self.known[source].dtype
                if is_markable and self.uses.is_shown(buffer):
                    marked = self._add_mark(buffer.name)
                    yield replace(instruction, buffer=replace(buffer, name=marked), source=self.names[source])
                if self.uses.is_read(buffer, is_markable=is_markable):
                    yield instruction
                else:
                    self.gone.add(buffer.name)
            case Free(names=names):
                left = tuple(name for name in names if name not in self.gone)
                if left:
                    yield Free(names=left)
            case Return(values=values):
                count = len(values) if self.kept is None else self.kept
                shown = [*map(self._resolve_output, values[:count]), *values[count:]]
                returned = {value.name for value in shown if isinstance(value, Ref)}
                rest = tuple(name for name in self.names.values() if name not in returned)
                if rest:
                    yield Free(names=rest)
                yield Return(values=tuple(shown))
            case _:
                yield instruction

    def _resolve_output(self, value: GraphOutput) -> GraphOutput:
        return Ref(self.names.get(value.name, value.name)) if isinstance(value, Ref) else value

    def _call(self, call: ExternCall) -> Iterator[Instruction]:
        resolved: dict[str, Buffer] = {}
        freed = []
        for buffer in _list_markable(call):
            is_kept = self.uses.is_shown(buffer) and self._may_be_marked(buffer)
            if is_kept and not self.uses.is_read(buffer):
                continue
            marked = self._add_mark(buffer.name) if is_kept else self._new_name(buffer.name)
            resolved[buffer.name] = replace(buffer, name=marked)
            if not is_kept:
                freed.append(marked)
        outputs = tuple(
            resolved.get(output.name, output) if isinstance(output, Buffer) else output
            for output in call.outputs
        )
        yield replace(call, outputs=outputs)
        for buffer in _list_markable(call):
            if buffer.name in resolved:
                yield from self._resolve(resolved[buffer.name], buffer, call)
        if freed:
            yield Free(names=tuple(freed))

    def _may_be_marked(self, buffer: Buffer) -> bool:
        """Tell if `buffer` can be two tensors: it stays as it is, and its conjugate is not seen as real
        numbers.
        """
        is_seen_otherwise = any(
            view.buffer.dtype != buffer.dtype and self.uses.is_returned(view.buffer.name)
            for view in self.uses.views_of(buffer.name)
        )
        return not self.uses.is_written(buffer.name) and not (buffer.dtype.is_complex and is_seen_otherwise)

    def _resolve(self, marked: Buffer, buffer: Buffer, call: ExternCall) -> Iterator[Instruction]:
        source = marked.name
        if buffer.dtype.is_complex:
            between = replace(buffer, name=self._new_name(buffer.name))
            yield _make_resolve_call("conj", source, between, call)
            source = between.name
        yield _make_resolve_call("neg", source, buffer, call)
        if source != marked.name:
            yield Free(names=(source,))

    def _add_mark(self, name: str) -> str:
        self.names[name] = self._new_name(name)
        return self.names[name]

    def _new_name(self, name: str) -> str:
        number = 0
        while (fresh := f"{name}_marked{number or ''}") in self.used:
            number += 1
        self.used.add(fresh)
        return fresh


def _make_resolve_call(mark: str, source: str, buffer: Buffer, call: ExternCall) -> ExternCall:
    return ExternCall(
        target=f"aten.resolve_{mark}.default", args=(Ref(source),), outputs=(buffer,), origins=call.origins
    )
