"""Why may a correct program's gradient be far from eager's? Because rounding decides on which side of zero a
ReLU stands.

    python -m benchmarks.branch_flips [--size reduced] [-o PAGE.md]

Takes one training step's gradients of ResNet-50 (float32, CPU) in float64, in eager, and in eager runs that
are as valid as the first: with other kernels, another memory format, or from weights and inputs off by their
last bit. Beside each run's distance from float64 stands the number of branches (signs of ReLU's operands,
places of maxima) that are not float64's. Then the branches are forced: eager with float64's, and float64 with
eager's. What remains in the former is rounding alone, what appears in the latter is branches alone.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from benchmarks.accuracy import distance, float64_copy, to_float64
from benchmarks.eager_spread import RUNS, nearby
from benchmarks.models import Instance, Setting, Size, find_case, instantiate
from benchmarks.report import number, table
from benchmarks.training import loss_and_gradients


class Branches(TorchFunctionMode):
    """Records which branch every element of each ReLU and max pool takes, or has them take given ones."""

    def __init__(self, forced: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.taken: list[Tensor] = []
        self._forced = None if forced is None else iter(forced)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func is F.relu:
            passes = next(self._forced) if self._forced is not None else args[0].detach() > 0
            self.taken.append(passes)
            return args[0] * passes.to(args[0].dtype)
        if func is F.max_pool2d:
            _, places = func(*args, **{**options, "return_indices": True})
            places = next(self._forced) if self._forced is not None else places
            self.taken.append(places)
            return args[0].flatten(2).gather(2, places.flatten(2)).view(places.shape)
        return func(*args, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step's gradients, by parameter, and the branches that it took."""

    name: str
    gradients: dict[str, Tensor]
    branches: list[Tensor]


def step(name: str, instance: Instance, forced: Sequence[Tensor] | None = None) -> Step:
    """One eager step of a copy of `instance`."""
    fresh = replace(instance, module=copy.deepcopy(instance.module))
    with Branches(forced) as mode:
        _, gradients = loss_and_gradients(fresh)
    return Step(name=name, gradients=gradients, branches=mode.taken)


def channels_last(instance: Instance) -> Instance:
    """The same in another memory format."""
    module = copy.deepcopy(instance.module)
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    inputs = tuple(value.contiguous(memory_format=torch.channels_last) for value in instance.inputs)
    return replace(instance, module=module, inputs=inputs)


def flatten_gradients(gradients_by_name: Mapping[str, Tensor]) -> Tensor:
    """All gradients as one float64 vector."""
    return torch.cat([value.double().flatten() for value in gradients_by_name.values()])


def row(found: Step, eager: Step, exact: Step) -> list[str]:
    """Return what the table says of one step."""
    flips = sum(int((a != b).sum()) for a, b in zip(found.branches, exact.branches, strict=True))
    whole = distance(flatten_gradients(found.gradients), flatten_gradients(exact.gradients))
    quotients = {
        name: distance(value, exact.gradients[name]).max_abs
        / distance(eager.gradients[name], exact.gradients[name]).max_abs
        for name, value in found.gradients.items()
    }
    worst = max(quotients, key=quotients.__getitem__)
    place = worst if found is not eager else ""
    return [found.name, str(flips), f"{whole.relative_l2:.1e}", number(quotients[worst]), place]


def measure(size: Size) -> str:
    """The page's table and the sentence below it."""
    setting = Setting(size=size, device=torch.device("cpu"), dtype=torch.float32)
    instance = instantiate(find_case("resnet50"), setting, training=True)
    in_float64 = replace(instance, module=float64_copy(instance.module), inputs=to_float64(instance.inputs))
    exact = step("float64", in_float64)
    eager = step("eager", instance)
    steps = [eager]
    with torch.backends.mkldnn.flags(enabled=False):
        steps.append(step("eager, without oneDNN", instance))
    steps.append(step("eager, channels last", channels_last(instance)))
    steps += [step(f"eager, last bits changed ({seed})", nearby(instance, seed)) for seed in range(RUNS)]
    rows = [row(found, eager, exact) for found in steps]
    rows.append(row(step("eager with float64's branches", instance, exact.branches), eager, exact))
    only_branches = step("float64 with eager's branches", in_float64, eager.branches)
    rows.append(row(only_branches, eager, exact))
    header = [
        "gradients of one step",
        "branches unlike float64's",
        "relative L2 error of all",
        "most that one gradient's largest error is, in units of eager's",
        "that gradient",
    ]
    error = flatten_gradients(eager.gradients) - flatten_gradients(exact.gradients)
    left = flatten_gradients(eager.gradients) - flatten_gradients(only_branches.gradients)
    share = (left.square().sum() / error.square().sum()).item()
    total = sum(taken.numel() for taken in exact.branches)
    return "\n".join(
        [
            *table(header, rows),
            "",
            (
                f"There are {total:,} branches. Those that eager takes and float64 does not account for all "
                "of eager's squared"
            ),
            f"error but {share:.1e} of it.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.branch_flips")
    parser.add_argument("--size", choices=("full", "reduced"), default="full")
    parser.add_argument("-o", "--output", type=Path, default=None, help="default: standard output")
    arguments = parser.parse_args()
    text = measure(Size(arguments.size))
    if arguments.output is None:
        print(text)
    else:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
