"""Which back ends are installed, and which of them serves a device, a target or a language.

What is installed is read once per process. Ours come first, the others by name; a back end is imported when
nobody before it serves what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from coilwork.backends.protocol import Backend
from coilwork.errors import CompileError
from coilwork_cache import Store
from coilwork_ir.codegen import Codegen
from coilwork_ir.device_traits import GROUP
from coilwork_ir.registration import Registered, RegistrationError, list_registered
from coilwork_ir.target import Target
from coilwork_runtime import DeviceError, DeviceLanguage, Language

ENTRY_POINT_GROUP: Final = GROUP
OWN: Final[Mapping[str, str]] = MappingProxyType(
    {"cpu": "coilwork.backends.cpu:BACKEND", "cuda": "coilwork.backends.cuda:BACKEND"}
)
"""What this package's metadata registers, for a source tree that has none."""


@cache
def list_backends() -> tuple[Registered, ...]:
    """The back ends that are installed, not yet imported.

    Raises:
        RegistrationError: two packages register one name.
    """
    return list_registered(ENTRY_POINT_GROUP, own=OWN)


@cache
def load_backend(entry: Registered) -> Backend:
    """The back end that `entry` names.

    Raises:
        RegistrationError: it cannot be imported, or is no back end.
    """
    value = entry.load()
    if not isinstance(value, Backend):
        missing = sorted(name for name in _parts() if not hasattr(value, name))
        raise RegistrationError(
            "no-backend",
            f"{entry.place}, registered as {entry.name!r} for {entry.group}, is no back end",
            reason=f"it has no {', '.join(missing)}",
            remedy=f"upgrade or uninstall {entry.origin}" if entry.origin else "",
        )
    return value


def backend_of_device(device: str) -> Backend:
    """The back end that serves `device`, named as torch does: `"cpu"`, `"cuda:0"`.

    Raises:
        DeviceError: none does.
        RegistrationError: one of those asked cannot be imported.
    """
    kind = device.partition(":")[0]
    if kind == "meta":
        raise DeviceError(
            "unknown-device",
            "meta tensors have no memory, and a kernel nothing to compute",
            remedy="make them on another device, or keep what only asks for shapes out of the graph with "
            "torch.compiler.disable",
        )
    for backend in _loaded():
        if kind in backend.device_types:
            return backend
    served = sorted({kind for backend in _loaded() for kind in backend.device_types})
    raise DeviceError(
        "unknown-device",
        f"no back end serves device {device!r}",
        reason=f"those that are installed serve {', '.join(served)}",
        remedy="install a package that does, move what is to be compiled to another device, or leave it to "
        "eager with torch.compiler.disable",
    )


def backend_of_target(target: Target) -> Backend:
    """The back end whose kind of target `target` is.

    Raises:
        CompileError: there is none.
        RegistrationError: one of those asked cannot be imported.
    """
    for backend in _loaded():
        if target.kind in backend.kinds:
            return backend
    raise CompileError(
        "no-codegen",
        f"no code generator supports target {target.name}",
        remedy=f"install a package that registers a back end for it under the entry point group {ENTRY_POINT_GROUP!r}",
    )


def codegen_for(target: Target) -> Codegen:
    """The generator for `target`.

    Raises:
        CompileError: no back end has one.
        RegistrationError: a back end that was asked cannot be imported.
    """
    return backend_of_target(target).codegen(target)


def find_language(name: str, store: Store | None) -> Language | None:
    """Who builds and launches kernels of the language `name`, if it is a back end's; `store` keeps what is built.

    Raises:
        RegistrationError: a back end that was asked cannot be imported.
    """
    for backend in _loaded():
        if name in backend.languages:
            compiler, device = backend.compiler(store), backend.device(store)
            return (
                None if compiler is None or device is None else DeviceLanguage(compiler, device, store=store)
            )
    return None


def _loaded() -> Iterator[Backend]:
    return map(load_backend, list_backends())


def _parts() -> tuple[str, ...]:
    return tuple(name for name in vars(Backend) if not name.startswith("_"))
