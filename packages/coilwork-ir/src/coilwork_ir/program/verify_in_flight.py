"""The verifier's rules on memory in flight: what operators use after their calls returned stays as it is until the wait."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer, references
from coilwork_ir.in_flight import InFlight
from coilwork_ir.program.nodes import (
    AllocPool,
    Comment,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    Launch,
    PoolView,
    Program,
    Reinterpret,
    Return,
    Reuse,
    WhileCall,
)
from coilwork_ir.program.walk import defined_buffers
from coilwork_ir.verification.results import FLIGHT_NAMES, check_flight
from coilwork_ir.verification.rules import Place, Rule

FLIGHT_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "in-flight": Rule(
            "memory that an operator uses after its call returned is not freed, reused or written before the wait for it, "
            "and not read while the operator writes it",
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
        # the piece of memory of each name, the names that hold each piece, and the pools with the pieces in them
        self._piece: dict[str, int] = {}
        self._holders: dict[int, set[str]] = {}
        self._members: dict[str, list[int]] = {}
        self._rest = _first_of_rest(program)
        for entry in (*program.inputs, *(constant.buffer for constant in program.constants)):
            if isinstance(entry, Buffer):
                self._hold(entry.name)

    def _hold(self, name: str, source: str | None = None) -> None:
        """`name` is a name of the memory of `source`, or of memory of its own."""
        piece = len(self._piece) if source is None else self._piece[source]
        self._piece[name] = piece
        self._holders.setdefault(piece, set()).add(name)

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
                if self._piece[instruction.source] in self._in_flight:
                    place.fail("in-flight", f"%{instruction.source} is still in use")
                self._hold(instruction.buffer.name, instruction.source)
                self._holders[self._piece[instruction.source]].discard(instruction.source)
            case Reinterpret():
                self._hold(instruction.buffer.name, instruction.source)
            case PoolView():
                self._hold(instruction.buffer.name)
                self._members[instruction.pool].append(self._piece[instruction.buffer.name])
            case AllocPool():
                self._members[instruction.pool] = []
            case Free():
                for name in instruction.names:
                    self._free(name, place, at_the_end=position >= self._rest)
            case CondCall() | WhileCall():
                # what collectives write is at rest before a branch or loop is given it
                for value in (
                    instruction.operands if isinstance(instruction, CondCall) else instruction.carried
                ):
                    for name in references(value):
                        self._read(name, place)
                for buffer in defined_buffers(instruction):
                    self._hold(buffer.name)
            case _:
                for buffer in defined_buffers(instruction):
                    self._hold(buffer.name)

    def _read(self, name: str, place: Place) -> None:
        if self._in_flight.awaits(self._piece[name]):
            place.fail("in-flight", f"%{name} is read, which an operator is still to write")

    def _write(self, name: str, place: Place) -> None:
        if self._piece[name] in self._in_flight:
            place.fail("in-flight", f"%{name} is written while an operator uses it")

    def _launch(self, launch: Launch, place: Place) -> None:
        for name, arg in zip(launch.args, self._kernels[launch.kernel].args, strict=True):
            if arg.role == "in":
                self._read(name, place)
            else:
                self._write(name, place)

    def _extern(self, call: ExternCall, place: Place) -> None:
        for _, name in call.out:
            self._write(name, place)
        for buffer in defined_buffers(call):
            self._hold(buffer.name)
        given = {
            name for value in (*call.args, *(value for _, value in call.kwargs)) for name in references(value)
        }
        known = given | {name for _, name in call.out} | {buffer.name for buffer in defined_buffers(call)}
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
        if not at_the_end and any(piece in self._in_flight for piece in pieces):
            place.fail("in-flight", f"%{name} is freed while an operator uses it")


def _first_of_rest(program: Program) -> int:
    """The position from which on the program only gives memory back: operators keep there what they still use."""
    position = len(program.instructions)
    while position and isinstance(program.instructions[position - 1], Free | Comment | Return):
        position -= 1
    return position
