"""A rule of an IR, and the error that names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from coilwork_ir.errors import VerifyError
from coilwork_ir.loc import UNKNOWN, Origin


@dataclass(frozen=True, slots=True)
class Rule:
    """An invariant: the sentence that is true of a correct value, and what to do when it is not."""

    sentence: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a verifier is: how to print the node (only done when a rule is broken), and where it
    came from.
    """

    describe: Callable[[], str]
    origins: tuple[Origin, ...] = UNKNOWN
    rules: Mapping[str, Rule]

    def fail(self, code: str, reason: str) -> NoReturn:
        """Raise the VerifyError of rule `code` for this place."""
        rule = self.rules[code]
        raise VerifyError(
            code,
            rule.sentence,
            node=self._text(),
            origins=self.origins,
            reason=reason,
            remedy=rule.remedy,
        )

    def _text(self) -> str:
        try:
            return self.describe()
        except (ValueError, StopIteration) as error:
            return f"(a node too broken to print: {error})"


def first_line(text: str) -> str:
    """The first line of `text`, without the brace that opens a body."""
    return text.strip().split("\n", 1)[0].removesuffix("{").strip()
