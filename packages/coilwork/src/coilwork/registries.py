"""Find installed back ends and wrappers, ours and other packages', and the back end of a device.

The entry points are read once per process. Ours come first, the others by name; a back end is imported when
nobody before it serves what is asked for.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork.errors import CompileError
from coilwork_cache import Store
from coilwork_ir import backend as protocol
from coilwork_ir.backend import Codegen
from coilwork_ir.device_traits import GROUP
from coilwork_ir.registration import Registry
from coilwork_ir.target import Target
from coilwork_ir.wrapper import GROUP as WRAPPER_GROUP
from coilwork_ir.wrapper import Wrapper
from coilwork_runtime import Device, DeviceLanguage, KernelCompiler, Language
from coilwork_runtime.errors import refuse_device

Backend: TypeAlias = protocol.Backend[Store, KernelCompiler, Device]
"""A back end whose kernels the runtime builds and launches."""

# As this package's metadata says, for processes that run from a source tree.
BACKENDS: Final[Registry[Backend]] = Registry(
    group=GROUP,
    protocol=protocol.Backend,
    noun="back end",
    own=MappingProxyType({"cpu": "coilwork.backends:CPU", "cuda": "coilwork.backends:CUDA"}),
)
WRAPPERS: Final[Registry[Wrapper]] = Registry(
    group=WRAPPER_GROUP,
    protocol=Wrapper,
    noun="wrapper",
    own=MappingProxyType(
        {
            "python": "coilwork_wrapper.module_wrapper:PYTHON",
            "native": "coilwork_wrapper.module_wrapper:NATIVE",
            "fx": "coilwork_wrapper.fx_wrapper:FX",
            "cpp": "coilwork_cpp_wrapper.wrapper:CPP",
            "package": "coilwork_aot.wrapper:PACKAGE",
        }
    ),
)


def find_device_backend(device: str) -> Backend:
    """Return the back end that serves `device`, a name of torch's: `"cpu"`, `"cuda:0"`.

    Raises:
        DeviceError: no back end does.
        RegistrationError: a back end cannot be imported.
    """
    kind = device.partition(":")[0]
    backend = BACKENDS.find_first(lambda one: kind in one.device_types)
    if backend is not None:
        return backend
    raise refuse_device(
        device, (kind for name in BACKENDS.names() for kind in BACKENDS.find(name).device_types)
    )


def find_target_backend(target: Target) -> Backend:
    """Return the back end for the kind of `target`.

    Raises:
        CompileError: there is none.
        RegistrationError: a back end cannot be imported.
    """
    backend = BACKENDS.find_first(lambda one: target.kind in one.kinds)
    if backend is not None:
        return backend
    raise CompileError(
        "no-codegen",
        f"no code generator supports target {target.name}",
        remedy=f"install a package that registers a back end for it under the entry point group {GROUP!r}",
    )


def find_codegen(target: Target) -> Codegen:
    """Return the code generator for `target`; raises as `find_target_backend`."""
    return find_target_backend(target).codegen(target)


def find_language(name: str, store: Store | None) -> Language | None:
    """Return what builds and launches kernels of the language `name`; None if no back end has it.

    Built kernels are kept in `store`.

    Raises:
        RegistrationError: a back end cannot be imported.
    """
    backend = BACKENDS.find_first(lambda one: name in one.languages)
    if backend is None:
        return None
    compiler, device = backend.compiler(store), backend.device(store)
    return None if compiler is None or device is None else DeviceLanguage(compiler, device, store=store)
