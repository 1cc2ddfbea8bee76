"""Errors of the runtime, and the errors of failed checks inside kernels.

A runtime error says what failed, why, and what to do; its code is stable. A check inside a kernel, such as
an index out of range, raises the error that its message names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn


class RuntimeFault(Exception):
    """Base of the runtime's own errors."""

    def __init__(self, code: str, what: str, *, reason: str = "", remedy: str = "") -> None:
        self.code = code
        self.what = what
        lines = [f"{type(self).__name__}[{code}]: {what}"]
        if reason:
            lines.append(f"  reason  {reason}")
        if remedy:
            lines.append(f"  try     {remedy}")
        super().__init__("\n".join(lines))


class KernelBuildError(RuntimeFault):
    """A kernel's source does not build. `kernel` is its name."""

    def __init__(self, kernel: str, *, reason: str, remedy: str = "") -> None:
        self.kernel = kernel
        super().__init__("kernel-build", f"kernel {kernel} does not build", reason=reason, remedy=remedy)

    def __reduce__(self) -> tuple[object, ...]:
        # built in worker processes, so it has to cross between them
        return (_rebuild, (self.kernel, str(self)))


def _rebuild(kernel: str, text: str) -> KernelBuildError:
    return KernelBuildError(kernel, reason=text)


class MissingCompilerError(RuntimeFault):
    """There is no C++ compiler on this machine."""


class ScratchFolderError(RuntimeFault):
    """There is no folder for temporary files that this process can write to, or no room in it."""


class MissingTritonError(RuntimeFault):
    """A GPU kernel is to be built and Triton is not installed."""


class KernelLaunchError(RuntimeFault, RuntimeError):
    """The driver refuses a kernel: it does not fit the device, its binary is damaged, or an earlier kernel
    failed.

    It is a `RuntimeError` too, as torch's errors of launches are.
    """


class LayoutError(RuntimeFault, RuntimeError):
    """A tensor handed to a compiled graph has another element type, device, shape or stride than it was
    compiled for.

    It is a `RuntimeError` too: what eager raises where a size from data is not what `torch._check` promised
    of it.
    """


class DeviceError(RuntimeFault):
    """A device is not there, or is not the one that a package was made for."""


def refuse_device(device: str, served: Iterable[str]) -> DeviceError:
    """Return the error of a `device` that no back end serves, where those that are installed serve others."""
    if device.partition(":")[0] == "meta":
        return DeviceError(
            "unknown-device",
            "meta tensors have no memory, and a kernel nothing to compute",
            remedy="make them on another device, or keep what only asks for shapes out of the graph with "
            "torch.compiler.disable",
        )
    return DeviceError(
        "unknown-device",
        f"no back end serves device {device!r}",
        reason=f"those that are installed serve {', '.join(sorted(set(served)))}",
        remedy="install a package that does, move what is to be compiled to another device, or leave it to "
        "eager with torch.compiler.disable",
    )


class ArtifactError(RuntimeFault):
    """A file that a wrapper saved cannot be read: it is missing or damaged."""


class ModuleTextError(RuntimeFault):
    """The text of a generated module is damaged: it does not define what such a module defines."""


class ProgramBytesError(RuntimeFault):
    """The bytes of a program cannot be read: they are damaged, or of another version."""


class ExecutorUnavailableError(RuntimeFault):
    """The native executor can neither be loaded nor built on this machine."""


class LifetimeError(RuntimeFault):
    """A program's memory is not handled as planned: a name defined or freed twice, memory handed out twice, a
    leak.
    """


# ---- checks inside kernels ----


def raise_check(kernel: str, checks: Sequence[str], number: int) -> NoReturn:
    """Raise the error of failed check `number` of `checks`, as `raise_failure` does."""
    raise_failure(f"{checks[number]} (in kernel {kernel})")


def raise_failure(message: str) -> NoReturn:
    """Raise the error that the text of a failed check says. `IndexError: …` names its own type.

    Raises:
        IndexError, ZeroDivisionError: the text begins with `IndexError: ` or `ZeroDivisionError: `.
        RuntimeError: any other.
    """
    kind, separator, rest = message.partition(": ")
    for error in (IndexError, ZeroDivisionError):
        if separator and kind == error.__name__:
            raise error(rest)
    raise RuntimeError(rest if separator and kind == "RuntimeError" else message)
