"""The verifier's rules on memory in flight: what operators and streams use stays as it is until the wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer, list_references
from coilwork_ir.inflight_memory import HOST, Actor, InFlight
from coilwork_ir.program.nodes import (
    AllocPool,
    Comment,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    Launch,
    LoopCall,
    PoolView,
    Program,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_ir.program.walk import list_defined_buffers, may_write_operands
from coilwork_ir.streams import OWN, Copy, ForkStream, JoinStream, RecordEvent, WaitEvent, is_host
from coilwork_ir.verification import FLIGHT_NAMES, Place, Rule, check_flight

FLIGHT_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "in-flight": Rule(
            "memory that an operator uses after its call returned, or another stream, is not freed, reused "
            "or written before the wait for it, and not read while it is written",
            "free, reuse, write or read the memory behind the wait",
        ),
        "flight-names": FLIGHT_NAMES,
    }
)


class FlightChecker:
    """Follows the memory of a program, instruction by instruction, and what operators still use of it."""

    def __init__(self, program: Program) -> None:
        self._kernels = {kernel.name: kernel for kernel in program.kernels}
        self._in_flight: InFlight[int] = InFlight()
        # the piece of memory of each name, the names that hold each piece, and the pools with the pieces in
        # them
        self._piece: dict[str, int] = {}
        self._holders: dict[int, set[str]] = {}
        self._members: dict[str, list[int]] = {}
        self._host: set[int] = set()
        self._rest = _first_of_rest(program)
        for entry in (*program.inputs, *(constant.buffer for constant in program.constants)):
            if isinstance(entry, Buffer):
                self._begin(entry)

    def _hold(self, name: str, source: str) -> None:
        """`name` is a name of the memory of `source`."""
        self._piece[name] = self._piece[source]
        self._holders[self._piece[name]].add(name)

    def _begin(self, buffer: Buffer) -> None:
        """`buffer` has memory of its own from here on: whatever had it before is done where its home is."""
        piece = self._piece[buffer.name] = len(self._piece)
        self._holders[piece] = {buffer.name}
        if is_host(buffer.device):
            self._host.add(piece)
            self._in_flight.place_on_host(piece)
        self._in_flight.use(self._home(piece), (), (piece,))

    def _home(self, piece: int) -> Actor:
        return HOST if piece in self._host else OWN

    def _actor(self, piece: int, stream: str) -> Actor:
        """Return the user of `piece` for work on `stream`; of its own memory the host, on the call's
        stream.
        """
        return self._home(piece) if stream == OWN else stream

    def follow(self, instruction: Instruction, position: int, place: Place) -> None:
        """Take `instruction` into account; what it names is defined, which others check.

        Raises:
            VerifyError: it breaks one of `FLIGHT_RULES`.
        """
        match instruction:
            case Launch():
                self._launch(instruction, place)
            case ExternCall():
                self._extern(instruction, place)
            case Reuse():
                piece = self._piece[instruction.source]
                if piece in self._in_flight:
                    place.fail("in-flight", f"%{instruction.source} is still in use")
                self._hold(instruction.buffer.name, instruction.source)
                self._holders[piece].discard(instruction.source)
                self._in_flight.use(self._home(piece), (), (piece,))
            case Reinterpret():
                self._hold(instruction.buffer.name, instruction.source)
            case PoolView():
                self._begin(instruction.buffer)
                self._members[instruction.pool].append(self._piece[instruction.buffer.name])
            case AllocPool():
                self._members[instruction.pool] = []
            case Free():
                for name in instruction.names:
                    self._free(name, place, at_the_end=position >= self._rest)
            case CondCall() | LoopCall() | SubprogramCall():
                # what collectives write is at rest before a branch, loop or subprogram is given it
                for value in (
                    instruction.carried if isinstance(instruction, LoopCall) else instruction.operands
                ):
                    for name in list_references(value):
                        self._read(name, place)
                        self._order((), (name,), OWN, place)
                if isinstance(instruction, CondCall):
                    self._order((instruction.predicate,), (), OWN, place)
                for buffer in list_defined_buffers(instruction):
                    self._begin(buffer)
            case Copy():
                self._copy(instruction, place)
            case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
                self._in_flight.follow(instruction)
            case Return():
                self._return(instruction, place)
            case _:
                for buffer in list_defined_buffers(instruction):
                    self._begin(buffer)

    def _read(self, name: str, place: Place) -> None:
        if self._in_flight.awaits(self._piece[name]):
            place.fail("in-flight", f"%{name} is read, which an operator is still to write")

    def _write(self, name: str, place: Place) -> None:
        if self._is_flying(name):
            place.fail("in-flight", f"%{name} is written while an operator uses it")

    def _is_flying(self, name: str) -> bool:
        return self._in_flight.is_flying(self._piece[name])

    def _order(self, reads: Iterable[str], writes: Iterable[str], stream: str, place: Place) -> None:
        """Work on `stream` reads and writes: behind what other streams did with the same memory."""
        for names, is_read in ((reads, True), (writes, False)):
            for name in names:
                piece = self._piece[name]
                given = ((piece,), ()) if is_read else ((), (piece,))
                if self._in_flight.use(self._actor(piece, stream), *given):
                    what = (
                        "read while another stream writes" if is_read else "written while another stream uses"
                    )
                    place.fail("in-flight", f"%{name} is {what} it")

    def _copy(self, copy: Copy, place: Place) -> None:
        self._read(copy.source, place)
        self._write(copy.target, place)
        if self._in_flight.copy(copy, self._piece[copy.source], self._piece[copy.target]):
            place.fail("in-flight", f"%{copy.source} or %{copy.target} is in use on another stream")

    def _return(self, instruction: Return, place: Place) -> None:
        for value in instruction.values:
            for name in list_references(value):
                piece = self._piece[name]
                if piece in self._in_flight and not self._is_flying(name):
                    place.fail("in-flight", f"%{name} is returned while a stream uses it")

    def _launch(self, launch: Launch, place: Place) -> None:
        reads, writes = [], []
        for name, arg in zip(launch.args, self._kernels[launch.kernel].args, strict=True):
            if arg.role == "in":
                self._read(name, place)
                reads.append(name)
            else:
                self._write(name, place)
                writes.append(name)
        self._order(reads, writes, launch.stream, place)

    def _extern(self, call: ExternCall, place: Place) -> None:
        for _, name in call.out:
            self._write(name, place)
        for buffer in list_defined_buffers(call):
            self._begin(buffer)
        given = {
            name
            for value in (*call.args, *(value for _, value in call.kwargs))
            for name in list_references(value)
        }
        into = {name for _, name in call.out}
        # an operator may write in place what it is given
        writes = into | (given if may_write_operands(call) else set())
        self._order(sorted(given - writes), sorted(writes), call.stream, place)
        known = (
            given | {name for _, name in call.out} | {buffer.name for buffer in list_defined_buffers(call)}
        )
        check_flight(call, known, self._piece, place)
        self._in_flight.wait(self._piece[name] for name in call.waits)
        if call.in_flight:
            self._in_flight.start(
                (self._piece[name] for name in call.in_flight), (self._piece[name] for name in call.until)
            )

    def _free(self, name: str, place: Place, *, at_the_end: bool) -> None:
        if name in self._members:
            pieces = self._members[name]
        else:
            piece = self._piece[name]
            self._holders[piece].discard(name)
            pieces = [] if self._holders[piece] else [piece]
        for piece in pieces:
            if piece in self._in_flight and not (at_the_end and self._in_flight.is_flying(piece)):
                place.fail("in-flight", f"%{name} is freed while an operator or another stream uses it")


def _first_of_rest(program: Program) -> int:
    """Return the position from which on the program only gives memory back: operators keep there what they
    still use.
    """
    position = len(program.instructions)
    while position and isinstance(program.instructions[position - 1], Free | Comment | Return):
        position -= 1
    return position
