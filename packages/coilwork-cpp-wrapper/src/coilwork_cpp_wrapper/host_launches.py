"""Launches of a C++ program's GPU kernels through Python, until each kernel has chosen how it is launched."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from coilwork_cpp_wrapper.torch_compat import tensors_from
from coilwork_runtime.launch_descriptor import Launcher

Launch = Callable[..., object]
_LAUNCH: Final = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int,
)


class HostLaunches:
    """The functions that a library calls for kernels that are not bound.

    A kernel is launched by its launcher, which may time its candidates. Then the library is given the
    kernel's launch descriptor, and launches by itself, by the same code as the native executor.
    """

    def __init__(self, library: ctypes.CDLL, names: Sequence[str], launchers: Mapping[str, Launch]) -> None:
        self._launchers = tuple(launchers[name] for name in names)
        self._bind = library.coilwork_bind
        self._bind.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        self._bind.restype = ctypes.c_int
        self._kept = _KeptError()
        # the library holds its address as long as it is loaded
        self._function = _LAUNCH(self._launch)
        library.coilwork_set_host(self._function)

    def take_error(self) -> BaseException:
        """Return what the last launch that failed in this thread raised."""
        return self._kept.take()

    def _launch(self, number: int, handles: Any, count: int, sizes: Any, numbers: int) -> int:
        launched = False
        with self._kept:
            launcher = self._launchers[number]
            launcher(*tensors_from(handles[:count]), *sizes[:numbers])
            describe = launcher.descriptor if isinstance(launcher, Launcher) else None
            descriptor = None if describe is None else describe()
            if descriptor is not None:
                # bytes that cannot be read leave the kernel to Python
                self._bind(number, descriptor, len(descriptor))
            launched = True
        return 0 if launched else 1


class _KeptError(threading.local):
    """Keeps what is raised where it is entered, interrupts too: C++ would lose it."""

    error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.error = error
        return True

    def take(self) -> BaseException:
        """Return it, once."""
        error, self.error = self.error, None
        return error or RuntimeError("a kernel was not launched")
