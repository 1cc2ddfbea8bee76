"""The process in which `coilwork bench` measures one backend, so that caches and memory peaks are its own.

`python -m coilwork_tools.bench.worker SCRIPT NAME BACKEND [--backward] [--place MODULE:FUNCTION]` prints one
line of JSON, a `Finding`.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from coilwork_frontend.torch_compat.tensors import list_tensors, map_tensors
from coilwork_tools.demo.worker import compile_function
from coilwork_tools.measurement import (
    is_measured_by_cuda,
    measure_cpu_ms,
    measure_cpu_peak_bytes,
    measure_cuda_peak_bytes,
    measure_gpu_activities,
    measure_host_issue_ms,
)

REPEATS: Final = 10
# Units in the last place that a result may be off by where eager, by luck, is not.
FLOOR_ULPS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One backend on one subject; what was not measured is None, and `failure` says why.

    Attributes:
        backend: its name.
        device: where it ran.
        failure: why nothing was measured, or what is wrong with the results.
        first_call_s: seconds of the first call, compilation and the compiler's imports included.
        busy_us: median GPU-busy microseconds of a call, second-level cache emptied before it; wall time on
            the CPU.
        host_us: median microseconds for the host to issue a call to an idle GPU.
        kernels: GPU kernels per call.
        peak_bytes: of torch's allocator, above inputs and parameters.
        fewest_bytes: inputs and parameters read once, results written once.
        copy_us: what a copy that moves as many bytes takes.
        error: distance of the results from float64, as a share of their norm; None where float64 does not
            run.
        eager_error: eager's.
    """

    backend: str
    device: str = ""
    failure: str = ""
    first_call_s: float | None = None
    busy_us: float | None = None
    host_us: float | None = None
    kernels: int | None = None
    peak_bytes: int | None = None
    fewest_bytes: int = 0
    copy_us: float | None = None
    error: float | None = None
    eager_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of a measurement: a function, its arguments, and whether its gradients are taken, too."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    backward: bool

    @property
    def tensors(self) -> list[Tensor]:
        """Arguments, parameters and buffers."""
        module = self.function if isinstance(self.function, nn.Module) else nn.Module()
        return [*list_tensors(self.args), *module.parameters(), *module.buffers()]

    def call(self, function: Callable[..., Any]) -> list[Tensor]:
        """Results of `function`, which stands for the subject's; then gradients of what wants some."""
        if not self.backward:
            with torch.no_grad():
                return list_tensors(function(*self.args))
        results = list_tensors(function(*self.args))
        roots = [value for value in results if value.requires_grad]
        leaves = [value for value in self.tensors if value.requires_grad]
        ones = [torch.ones_like(root) for root in roots]
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(roots, leaves, ones, allow_unused=True)
        return [*(value.detach() for value in results), *(g for g in gradients if g is not None)]

    def to_float64(self) -> Subject:
        """Return the same with every floating-point number as float64."""
        function = self.function
        if isinstance(function, nn.Module):
            function = copy.deepcopy(function).double()
        return Subject(
            function=function, args=map_tensors(_convert_to_float64, self.args), backward=self.backward
        )


def load(script: str, name: str) -> Callable[[], Any]:
    """Return the function `name` of a file, or of a module by its dotted name.

    Raises:
        FileNotFoundError, ImportError, AttributeError: it cannot be found.
    """
    if script.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(script).stem, script)
        if spec is None or spec.loader is None:
            raise ImportError(f"{script} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(script)
    function: Callable[[], Any] = getattr(module, name)
    return function


def build(script: str, name: str, *, backward: bool) -> Subject:
    """Return the subject, the same at every call in every process as far as torch's generator decides.

    Raises:
        TypeError: the function gives something else than a callable and its arguments.
    """
    torch.manual_seed(0)
    subject = load(script, name)()
    if not (isinstance(subject, tuple) and len(subject) == 2 and callable(subject[0])):
        raise TypeError(f"{name}() must return a function or module, and a tuple of its arguments")
    function, args = subject
    return Subject(function=function, args=tuple(args), backward=backward)


def measure(script: str, name: str, backend: str, *, backward: bool, place: str = "") -> Finding:
    """Compile, judge, then time. `place` as in `compile_function`."""
    subject = build(script, name, backward=backward)
    device = next((value.device for value in subject.tensors), torch.device("cpu"))
    cuda = is_measured_by_cuda(device.type)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        compiled = compile_function(subject.function, backend, place)
        results = subject.call(compiled)
        if cuda:
            torch.cuda.synchronize()
        first_call_s = time.perf_counter() - start
    fewest = sum(map(_count_bytes, (*subject.tensors, *results)))
    finding = Finding(backend=backend, device=str(device), first_call_s=first_call_s, fewest_bytes=fewest)
    fallback = [str(w.message) for w in caught if w.category.__name__ == "CoilworkFallbackWarning"]
    failure, error, eager_error = judge(script, name, results, backward=backward)
    if fallback or failure:
        return _update(finding, failure=(fallback or [failure])[0], error=error, eager_error=eager_error)
    source = torch.empty(max(fewest // 2, 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "call": lambda: subject.call(compiled),
    }
    finding = _update(finding, error=error, eager_error=eager_error)
    for call in calls.values():
        call()
    if not cuda:
        copy_us, busy_us = (
            statistics.median(measure_cpu_ms(c, repeats=REPEATS)) * 1e3 for c in calls.values()
        )
        return _update(
            finding, copy_us=copy_us, busy_us=busy_us, peak_bytes=measure_cpu_peak_bytes(calls["call"])
        )
    activity = measure_gpu_activities(calls, repeats=REPEATS)
    return _update(
        finding,
        copy_us=statistics.median(a.busy_ms for a in activity["copy"]) * 1e3,
        busy_us=statistics.median(a.busy_ms for a in activity["call"]) * 1e3,
        kernels=activity["call"][0].kernels,
        host_us=statistics.median(measure_host_issue_ms(calls["call"], repeats=REPEATS)) * 1e3,
        peak_bytes=measure_cuda_peak_bytes(calls["call"]),
    )


def judge(
    script: str, name: str, results: list[Tensor], *, backward: bool
) -> tuple[str, float | None, float | None]:
    """Return the fault of `results`, if they have one, their error, and eager's. It calls subjects of its
    own, in case calls change them.
    """
    eager = build(script, name, backward=backward)
    expected = eager.call(eager.function)
    if [(r.dtype, r.shape) for r in results] != [(e.dtype, e.shape) for e in expected]:
        return "results have other types or shapes than eager's", None, None
    for one, other in zip(results, expected, strict=True):
        if not one.is_floating_point() and not torch.equal(one, other):
            return "integers or booleans differ from eager's", None, None
    wide = build(script, name, backward=backward).to_float64()
    try:
        exact = wide.call(wide.function)
    except (RuntimeError, TypeError):
        return "", None, None  # something in it asks for another type; then there is nothing to judge by
    error, eager_error = compute_distance(results, exact), compute_distance(expected, exact)
    floor = FLOOR_ULPS * max(
        (torch.finfo(r.dtype).eps for r in results if r.is_floating_point()), default=0.0
    )
    if not error <= 2 * eager_error + floor:
        return f"wrong: {error:.2g} from float64, where eager is {eager_error:.2g}", error, eager_error
    return "", error, eager_error


def compute_distance(values: list[Tensor], exact: list[Tensor]) -> float:
    """Norm of the difference as a share of the norm, over all floating-point tensors as one vector."""
    square = scale = 0.0
    for value, reference in zip(values, exact, strict=True):
        if value.is_floating_point():
            square += (value.detach().double() - reference.detach()).square().sum().item()
            scale += reference.detach().double().square().sum().item()
    return float((square / scale) ** 0.5 if scale else square**0.5)


def _update(finding: Finding, **more: Any) -> Finding:
    return Finding(**asdict(finding) | more)


def _convert_to_float64(value: Tensor) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def _count_bytes(value: Tensor) -> int:
    count = value.element_size()
    for extent, stride in zip(value.shape, value.stride(), strict=True):
        count *= extent if stride else min(extent, 1)
    return count


def main() -> None:
    # Whatever a library prints must not end up in the answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    parser = argparse.ArgumentParser(prog="python -m coilwork_tools.bench.worker", description=__doc__)
    for name in ("script", "name", "backend"):
        parser.add_argument(name)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--place", default="")
    arguments = parser.parse_args()
    finding = measure(
        arguments.script,
        arguments.name,
        arguments.backend,
        backward=arguments.backward,
        place=arguments.place,
    )
    answers.write(json.dumps(asdict(finding)) + "\n")
    answers.close()


if __name__ == "__main__":
    main()
