"""What to compile for a Triton kernel: its candidates, each as a request to a worker, and their keys."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_cache import content_key
from coilwork_runtime.errors import KernelBuildError, MissingTritonError
from coilwork_runtime.manifest.kernel_manifest import KernelSpec

# Of what workers make of a request: raised, what was built before is built anew.
FORMAT: Final = "5"
DISTRIBUTIONS: Final = ("triton", "pytorch-triton", "pytorch-triton-rocm")
# What of a configuration is for the compiler; the rest are the kernel's own compile-time parameters.
OPTIONS: Final = frozenset(
    {
        "num_warps",
        "num_stages",
        "num_ctas",
        "maxnreg",
        "enable_fp_fusion",
        "waves_per_eu",
        "matrix_instr_nonkdim",
        "kpack",
    }
)
TYPES: Final[Mapping[str, str]] = {
    "f64": "fp64",
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "f8e4m3": "fp8e4nv",
    "f8e5m2": "fp8e5",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "u64": "u64",
    "u32": "u32",
    "u16": "u16",
    "u8": "u8",
    "bool": "i1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """A kind of GPU as Triton names it: `("cuda", 90, 32)`, `("hip", "gfx942", 64)`."""

    backend: str
    arch: int | str
    warp_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration of a kernel: what to send to a worker, and the key of the answer."""

    config: Mapping[str, int]
    key: str
    request: Mapping[str, Any]


def triton_version() -> str:
    """The version of the installed Triton, read without importing it.

    Raises:
        MissingTritonError: there is none.
    """
    if importlib.util.find_spec("triton") is not None:
        for name in DISTRIBUTIONS:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    raise MissingTritonError(
        "no-triton",
        "a GPU kernel is to be built and Triton is not installed",
        reason=f"no distribution {' or '.join(DISTRIBUTIONS)} with a module triton is on the import path",
        remedy="pip install 'coilwork-runtime[triton]', or compile for the CPU",
    )


def gpu_target(spec: KernelSpec) -> GpuTarget:
    """The device that `spec` was generated for; without a name, the current one.

    Raises:
        KernelBuildError: the target is no GPU, or there is none.
    """
    name = spec.target
    if not name and torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        name = (
            str(facts.gcnArchName).partition(":")[0]
            if torch.version.hip
            else f"sm_{facts.major}{facts.minor}"
        )
    family, _, number = name.partition("_")
    if family == "sm" and number.isdigit():
        return GpuTarget(backend="cuda", arch=int(number), warp_size=32)
    if name.startswith("gfx"):
        return GpuTarget(backend="hip", arch=name, warp_size=64 if name.startswith("gfx9") else 32)
    raise KernelBuildError(
        spec.name,
        reason=f"target {spec.target!r} is not a GPU that Triton builds for",
        remedy="name a target such as sm_90 or gfx942",
    )


def candidates(
    spec: KernelSpec, target: GpuTarget, version: str, *, text: KernelSpec | None = None
) -> tuple[Candidate, ...]:
    """Return what to compile, in the order of `spec.configs`; `text` as in `candidate`."""
    return tuple(candidate(spec, config, target, version, text=text) for config in spec.configs)


def candidate(
    spec: KernelSpec,
    config: Mapping[str, int],
    target: GpuTarget,
    version: str,
    *,
    text: KernelSpec | None = None,
) -> Candidate:
    """Return what to compile for `spec` in one configuration; of `text`, if it is given, another kernel that
    does the same.
    """
    of = text or spec
    options: dict[str, Any] = {"enable_fp_fusion": True}
    options |= {name: value for name, value in config.items() if name in OPTIONS}
    options["enable_fp_fusion"] = bool(options["enable_fp_fusion"])
    if spec.checks:
        # device assertions exist in debug mode only; the overflow checks that come with it are not wanted
        options |= {"debug": True, "sanitize_overflow": False}
    request = {
        "source": of.source,
        "entry": of.entry,
        "types": {arg.name: ("*" if arg.is_pointer else "") + TYPES[arg.dtype] for arg in spec.args},
        "divisible": [arg.name for arg in spec.args if arg.aligned or arg.role == "scratch"],
        "constants": constants_of(config),
        "options": options,
        "target": [target.backend, target.arch, target.warp_size],
    }
    key = content_key("kernel", "triton", FORMAT, version, json.dumps(request, sort_keys=True))
    return Candidate(config=config, key=key, request=request)


def constants_of(config: Mapping[str, int]) -> dict[str, int]:
    """The kernel's compile-time parameters in a configuration."""
    return {name: value for name, value in config.items() if name not in OPTIONS}
