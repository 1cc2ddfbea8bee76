"""A character cursor over IR text, with errors that show the line and a caret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from coilwork_ir.errors import ParseError
from coilwork_ir.index import Expr, IndexSyntaxError, parse_expr

_NAME: Final = re.compile(r"[A-Za-z_@][A-Za-z0-9_.$\-]*")
_NUMBER: Final = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_VALUE: Final = re.compile(r"t\d+\b")
_KEYWORD: Final = re.compile(r"([A-Za-z_]\w*)\s*=")
_SPACE: Final = re.compile(r"(?:\s|#[^\n]*)*")


class Reader:
    """Reads `text` from left to right. White space and `#` comments separate tokens."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._skip()

    def error(self, reason: str, at: int | None = None) -> ParseError:
        """Return an error at position `at` (by default here), showing the line with a caret."""
        position = self.at if at is None else at
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        line = self.text[start : len(self.text) if end < 0 else end]
        number = self.text.count("\n", 0, position) + 1
        caret = " " * (position - start) + "^"
        return ParseError("syntax", f"line {number}: {reason}", node=f"{line}\n          {caret}")

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        if match is not None:
            self.at = match.end()

    @property
    def is_at_end(self) -> bool:
        """True at the end of the text."""
        return self.at >= len(self.text)

    def finish(self) -> None:
        """Require the end of the text.

        Raises:
            ParseError: more is left.
        """
        if not self.is_at_end:
            raise self.error("expected the end")

    def peek(self, literal: str) -> bool:
        """Tell if `literal` comes next (a word only as a whole word)."""
        if not self.text.startswith(literal, self.at):
            return False
        after = self.text[self.at + len(literal) : self.at + len(literal) + 1]
        return not (literal[-1].isalnum() and (after.isalnum() or after in ("_", ".")))

    def accept(self, literal: str) -> bool:
        """Consume `literal` if it comes next."""
        if not self.peek(literal):
            return False
        self.at += len(literal)
        self._skip()
        return True

    def expect(self, literal: str) -> None:
        """Consume `literal`, which must come next."""
        if not self.accept(literal):
            raise self.error(f"expected {literal!r}")

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.error(f"expected {what}")
        self.at = match.end()
        self._skip()
        return match[0]

    def name(self) -> str:
        """Return an identifier."""
        return self._match(_NAME, "a name")

    def choice(self, allowed: tuple[str, ...], what: str) -> str:
        """One of the words `allowed`."""
        start = self.at
        word = self.name()
        if word not in allowed:
            raise self.error(f"expected {what}, one of {', '.join(allowed)}", start)
        return word

    def string(self) -> str:
        """Return a double-quoted string with JSON escapes."""
        value = json.loads(self._match(_STRING, "a string"))
        assert isinstance(value, str)
        return value

    def peek_value(self) -> bool:
        """Tell if a value name, `t` and digits, comes next."""
        return _VALUE.match(self.text, self.at) is not None

    def keyword(self) -> str | None:
        """Consume `name =`, if that comes next, and return the name."""
        match = _KEYWORD.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        self._skip()
        return match[1]

    def integer(self) -> int:
        """Return a decimal integer."""
        start = self.at
        word = self._match(_NUMBER, "an integer")
        try:
            return int(word)
        except ValueError:
            raise self.error("expected an integer", start) from None

    def number(self) -> int | float:
        """Return an integer, or a float: one with a point, an exponent, `inf` or `nan`."""
        word = self._match(_NUMBER, "a number")
        return int(word) if word.lstrip("-").isdigit() else float(word)

    def index(self, symbols: Mapping[str, Expr], stops: str) -> Expr:
        """Return an index expression up to one of the characters `stops` outside parentheses, which is
        left unread.
        """
        depth, end = 0, self.at
        while end < len(self.text):
            char = self.text[end]
            if depth == 0 and char in stops:
                break
            depth += (char == "(") - (char == ")")
            if depth < 0:
                break
            end += 1
        start, piece = self.at, self.text[self.at : end]
        try:
            value = parse_expr(piece.strip(), symbols)
        except IndexSyntaxError as error:
            raise self.error(str(error), start) from error
        self.at = end
        self._skip()
        return value


def quote(text: str) -> str:
    """`text` as a string literal that `Reader.string` reads."""
    return json.dumps(text, ensure_ascii=False)
