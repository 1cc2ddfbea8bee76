"""Every model through every driver: whether results are the same to the bit.

`python -m benchmarks.drivers_agree` compiles each model of the suite for inference and for a training step,
once for each driver, and compares results, gradients and statistics with those of the native executor. `aot`
is a package, written, read and called; `aot-cpp` is the same package in the C++ library. It prints a line per
model and fails if anything differs or is refused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.accuracy import tensors_of
from benchmarks.backends import resolve_backend
from benchmarks.models import CASES, Instance, ModelCase, Setting, Size, find_case, instantiate
from benchmarks.package_library import PackageInCpp

OPTIONS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "native": {"wrapper": "native"},
        "python": {"wrapper": "python", "executor": "python"},
        "fx": {"wrapper": "fx"},
        "cpp": {"wrapper": "cpp"},
    }
)
"""The options of each driver; the first is what the others are compared with."""
AOT: Final = "aot"
"""The driver of models that were written to a file and read."""
AOT_CPP: Final = "aot-cpp"
"""The same without Python."""
PACKAGES: Final = (AOT, AOT_CPP)
DRIVERS: Final = (*OPTIONS, *PACKAGES)
MODES: Final = ("infer", "train")

Values = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a driver made of a model.

    Attributes:
        values: results of each call, then gradients and statistics; none if `refusal` says why.
        seconds: from the first call on, compilation included.
    """

    values: Values = ()
    refusal: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A driver beside the first one; `verdict` is empty if every value is the same to the bit."""

    model: str
    mode: str
    driver: str
    verdict: str
    seconds: float


def find_difference(ours: Values, expected: Values) -> str:
    """Return where two rows of tensors differ: in number, shape, element type, strides or bits; empty
    nowhere.
    """
    if len(ours) != len(expected):
        return f"{len(ours)} values in place of {len(expected)}"
    for number, (one, other) in enumerate(zip(ours, expected, strict=True)):
        if (one.shape, one.dtype, one.stride()) != (other.shape, other.dtype, other.stride()):
            return f"value {number} is laid out as {one.dtype}{list(one.shape)} {one.stride()}"
        if one.numel() and not torch.equal(_bits(one), _bits(other)):
            worst = (one.double() - other.double()).abs().max().item()
            return f"value {number} differs by up to {worst:.3g}"
    return ""


def _bits(value: Tensor) -> Tensor:
    """The bytes of `value`, in the order of its elements: a NaN is equal to itself there, and -0 is not 0."""
    return value.detach().contiguous().flatten().view(torch.uint8)


def run_driver(case: ModelCase, setting: Setting, mode: str, driver: str, *, dynamic: bool) -> Outcome:
    """Compile the model afresh for `driver`, and call it twice; with `dynamic`, the second time with other
    sizes.

    Whatever it raises is the refusal.
    """
    torch._dynamo.reset()
    patch = torch._dynamo.config.patch(dict(case.dynamo)) if case.dynamo else nullcontext()
    instance = instantiate(case, setting, training=mode == "train")
    start = time.perf_counter()
    try:
        with patch, torch.random.fork_rng():
            torch.manual_seed(0)
            if driver in PACKAGES:
                values = tuple(_call_package(instance, driver))
            else:
                values = tuple(_call_compiled(instance, mode, driver, dynamic=dynamic))
    except Exception as error:  # noqa: BLE001 - its message is the finding
        # torch names the back end on the first line, and what it raised on the second
        said = " ".join(str(error).split("\n")[:2]).strip()
        return Outcome(refusal=f"{type(error).__name__}: {said}", seconds=time.perf_counter() - start)
    finally:
        torch._dynamo.reset()
    return Outcome(values=values, seconds=time.perf_counter() - start)


def _call_compiled(instance: Instance, mode: str, driver: str, *, dynamic: bool) -> Iterator[Tensor]:
    options: dict[str, Any] = {**OPTIONS[driver], "strict": True}
    module, backend = instance.module, resolve_backend("coilwork")
    # a new function for each driver, since torch keeps what it compiled with the code of a function
    call = torch.compile(module, backend=backend, options=options, dynamic=dynamic or None)
    for number in range(2):
        inputs = _other_sizes(instance) if dynamic and number else instance.inputs
        with torch.set_grad_enabled(mode == "train"):
            result = call(*inputs)
        yield from _copies(tensors_of(result))
        if mode == "train":
            loss = instance.case.loss
            assert loss is not None, "only models with a loss are trained"
            loss(result, inputs).backward()
    if mode == "train":
        yield from _copies(p.grad for p in module.parameters() if p.grad is not None)
        yield from _copies(module.buffers())


def _other_sizes(instance: Instance) -> tuple[Tensor, ...]:
    """The inputs, shorter by 1 along each dimension that the case leaves open."""
    inputs = list(instance.inputs)
    for argument, dim in instance.case.dynamic_dims:
        inputs[argument] = inputs[argument].narrow(dim, 0, inputs[argument].shape[dim] - 1).clone()
    return tuple(inputs)


def _call_package(instance: Instance, driver: str) -> Iterator[Tensor]:
    import coilwork

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder, "model.cw")
        coilwork.export(instance.module, instance.inputs, path=path)
        device = str(instance.inputs[0].device)
        loaded: Callable[..., Any] = coilwork.load(path) if driver == AOT else PackageInCpp(path, device)
        for _ in range(2):
            yield from _copies(tensors_of(loaded(*instance.inputs)))


def _copies(values: Any) -> Iterator[Tensor]:
    for value in values:
        yield value.detach().clone()


def compare_drivers(
    case: ModelCase, setting: Setting, mode: str, drivers: Sequence[str], *, dynamic: bool = False
) -> Iterator[Finding]:
    """Each of `drivers` beside the native executor, that one's own fate first."""
    expected = run_driver(case, setting, mode, "native", dynamic=dynamic)
    yield _judge(case, mode, "native", expected, expected)
    for driver in drivers:
        if driver == "native" or (driver in PACKAGES and (mode == "train" or dynamic)):
            continue
        outcome = run_driver(case, setting, mode, driver, dynamic=dynamic)
        yield _judge(case, mode, driver, outcome, expected)


def _judge(case: ModelCase, mode: str, driver: str, outcome: Outcome, expected: Outcome) -> Finding:
    verdict = outcome.refusal
    if not verdict and not expected.refusal:
        verdict = find_difference(outcome.values, expected.values)
    return Finding(model=case.name, mode=mode, driver=driver, verdict=verdict, seconds=outcome.seconds)


def format_findings(findings: Sequence[Finding]) -> str:
    """One line for a model in a mode, and one more for each driver that differs."""
    first = findings[0]
    told = "  ".join(f"{f.driver} {'differs' if f.verdict else 'same'} ({f.seconds:.1f} s)" for f in findings)
    lines = [f"{first.model:<16} {first.mode:<6} {told}"]
    lines += [f"    {f.driver}: {f.verdict}" for f in findings if f.verdict]
    return "\n".join(lines)


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def split(text: str) -> tuple[str, ...]:
        chosen = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in chosen:
            if known and name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return chosen

    return split


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drivers_agree", description=__doc__)
    parser.add_argument("--models", type=_names(()), default=tuple(case.name for case in CASES))
    parser.add_argument("--modes", type=_names(MODES), default=MODES, help="infer,train")
    parser.add_argument("--drivers", type=_names(DRIVERS), default=DRIVERS, help=", ".join(DRIVERS))
    parser.add_argument("--size", choices=[size.value for size in Size], default=Size.REDUCED.value)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dynamic", action="store_true", help="open sizes, of the models that name them")
    asked = parser.parse_args(arguments)
    setting = Setting(
        size=Size(asked.size), device=torch.device(asked.device), dtype=getattr(torch, asked.dtype)
    )
    found: list[Finding] = []
    for name in asked.models:
        case = find_case(name)
        for mode in asked.modes:
            if (mode == "train" and not case.train) or (asked.dynamic and not case.dynamic_dims):
                continue
            findings = list(compare_drivers(case, setting, mode, asked.drivers, dynamic=asked.dynamic))
            print(format_findings(findings), flush=True)
            found += findings
    differing = sum(bool(finding.verdict) for finding in found)
    print(f"{len(found) - differing} of {len(found)} runs are the same to the bit")
    return int(differing > 0 or not found)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
