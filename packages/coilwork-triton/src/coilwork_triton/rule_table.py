"""One decision as a table of rules: the first whose pattern fits gives the answer, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[Question, Answer]):
    """One row: where `matches` holds, `answer` is proposed, because of `why`."""

    name: str
    matches: Callable[[Question], bool]
    answer: Callable[[Question], Answer]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTable(Generic[Question, Answer]):
    """Rules, most particular first; the last one matches everything."""

    rules: tuple[Rule[Question, Answer], ...]

    def first(self, question: Question) -> Rule[Question, Answer]:
        """Return the first rule that matches `question`."""
        return next(rule for rule in self.rules if rule.matches(question))

    def answer(self, question: Question) -> Answer:
        """Return the proposal of the first rule that matches `question`."""
        return self.first(question).answer(question)

    def __str__(self) -> str:
        return "\n".join(f"{rule.name}: {rule.why}" for rule in self.rules)


def match_always(question: object) -> bool:
    """True: the pattern of a last rule."""
    return True
