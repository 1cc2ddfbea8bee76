"""Libraries that the native executor calls itself, in place of ATen's operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledLibrary:
    """A library, and when it is called.

    Attributes:
        NAME: of the library, for people.
        WORK: what it computes: the extension's function that opens it, and the option that decides about it.
        path: of the library; empty for the one that torch has loaded.
        device: type of the devices that it computes on.
        settings: what torch says at present; a negative number leaves everything to ATen.
        required: whether it is an error if the library cannot be opened; else ATen does everything then.
    """

    NAME: ClassVar[str]
    WORK: ClassVar[str]
    path: str = ""
    device: str = "cuda"
    settings: Callable[[], int]
    required: bool = True

    def open(self, extension: Any) -> int:
        """The address that the extension knows it by.

        Raises:
            ImportError: it is not to be had.
        """
        address: int = getattr(extension, self.WORK)(self.path)
        return address

    def number(self, device: str) -> int | None:
        """How plans name `device`: its index, -1 for the CPU of tests; `None` if the library does not compute
        there.
        """
        kind, _, index = device.partition(":")
        if kind != self.device:
            return None
        return int(index or 0) if kind == "cuda" else -1
