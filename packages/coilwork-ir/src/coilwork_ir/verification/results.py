"""What must hold of an external call's results: their places in what its operator returns, and the names of
numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from coilwork_ir.buffers import ResultPath, SymbolOutput
from coilwork_ir.verification.rules import Place, Rule
from coilwork_ir.verification.scope import Scope


def check_paths(paths: Sequence[ResultPath], count: int, place: Place, *, single: bool) -> None:
    """Each of `count` results has a place of its own, if `paths` says where they lie."""
    if not paths:
        return
    if single:
        place.fail("extern-results", "one bare value is returned, and there are paths into it")
    if len(paths) != count:
        place.fail("extern-results", f"{len(paths)} paths for {count} results")
    for number, path in enumerate(paths):
        if not path or any(step < 0 for step in path):
            place.fail("extern-results", f"{list(path)} is no path to a result")
        for other in paths[:number]:
            shorter = min(len(path), len(other))
            if path[:shorter] == other[:shorter]:
                place.fail("extern-results", f"a result at {list(path)} and one at {list(other)}")


def declare_numbers(outputs: Sequence[object], scope: Scope, place: Place) -> None:
    """The numbers among `outputs` of one call have values from here on, each under a name of its own."""
    numbers = [output.symbol for output in outputs if isinstance(output, SymbolOutput)]
    for earlier, number in enumerate(numbers):
        if number in numbers[:earlier]:
            place.fail("extern-results", f"two results are {number!r}")
        scope.declare(number, place)


FLIGHT_NAMES: Final = Rule(
    "a call leaves in flight what it is given or returns, and what is waited for is in flight",
    "name operands and results of the call",
)


class _Call(Protocol):
    """A call of either IR."""

    @property
    def in_flight(self) -> tuple[str, ...]: ...
    @property
    def until(self) -> tuple[str, ...]: ...
    @property
    def waits(self) -> tuple[str, ...]: ...


def check_flight(call: _Call, own: Collection[str], there: Collection[str], place: Place) -> None:
    """Check that memory in flight is named by buffers of `call`, and that what it waits for is there.

    Raises:
        VerifyError: it does not.
    """
    for name in call.in_flight:
        if name not in own:
            place.fail("flight-names", f"%{name} is neither given to the call nor returned by it")
    for name in call.until:
        if name not in call.in_flight:
            place.fail("flight-names", f"%{name} is waited for later and not in flight")
    for name in call.waits:
        if name not in there:
            place.fail("flight-names", f"there is no %{name} to wait for")
