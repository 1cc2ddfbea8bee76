"""Refusals of packages, targets and calls. Each has a stable code, which `CODES` lists."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_runtime.errors import DeviceError, LayoutError, RuntimeFault

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        # PackageError
        "unreadable": "the file is missing, is no regular file, or may not be read",
        "unwritable": "the file cannot be written",
        "not-a-package": "the file is no archive of records, or its first record is no manifest",
        "truncated": "the archive ends too early, or something follows it",
        "damaged-header": "a header differs from what the writer writes",
        "compressed-record": "a record is compressed; packages hold plain bytes",
        "unsafe-path": "a record's name is no plain relative path",
        "symlink-record": "a record is a link, a folder or a device",
        "duplicate-record": "two records have one name",
        "overlapping-records": "records overlap, or have a gap between them",
        "oversized-record": "a record is larger than the file or than its kind may be",
        "unknown-record": "a record is not in the manifest",
        "missing-record": "the manifest names a record that is not there",
        "wrong-hash": "a record differs from its hash",
        "wrong-digest": "the package is not the one that was asked for",
        "schema-version": "the package has a schema that this version does not read",
        "damaged-manifest": "the manifest does not describe a package",
        "damaged-program": "a program or its roles cannot be read",
        "damaged-kernels": "manifests or binaries of kernels cannot be read",
        "damaged-weights": "the weights are not what the manifest says",
        "user-kernels": "a program launches a kernel that is an object of the process that compiled it",
        "missing-constant": "a folder has no values for a constant of its program",
        "unchecked-input": "a program says nothing of one of its inputs",
        "missing-kernel": "a program launches a kernel that has no binary",
        "missing-weights": "the package brings no values for its state",
        "unknown-entry": "there is no entry point of this name",
        "unknown-nesting": "an input is nested in a class that nobody has registered here",
        "wrong-state": "a state has other names, shapes or element types",
        # TargetError
        "wrong-device": "the package has nothing for this kind of device",
        "missing-device": "torch does not see the device",
        "wrong-architecture": "the code is for another architecture or operating system",
        "missing-features": "the processor lacks instructions that the code uses",
        "missing-operator": "a program calls an operator of a library that is not imported here",
        "torch-version": "torch is outside the range that the package was made for",
        "runtime-version": "the runtime is of another version",
        "needs-python": "C++ only: a program makes a call that only Python can make",
        "no-torch": "C++ only: libtorch_cpu.so is neither loaded nor found",
        # InputError
        "nesting": "inputs are nested or named otherwise than exported",
        "fixed-value": "an input that was fixed at export has another value",
        "no-tensor": "an input is no tensor, or is one where a number is due",
        "dtype": "an input has another element type",
        "device": "an input is on another device",
        "shape": "an input has another shape, or a size outside of its range",
        "strides": "an input that is written to has other strides",
        # of C++, where Python raises what torch does
        "call-failed": "C++ only: a check in a kernel, an operator or the device failed",
    }
)
"""What each code says."""


class PackageError(RuntimeFault):
    """A package cannot be read or written, or is not what it says."""


class TargetError(DeviceError):
    """A package was made for another device, architecture, torch or runtime than those here."""


class InputError(LayoutError):
    """A call's inputs are not what the model was exported for."""
