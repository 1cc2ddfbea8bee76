"""A program as a script that stands alone: it needs torch and Coilwork, and fails while the bug is there."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from integration_tests.fuzz.program import Program, materialize

MOST_WRITTEN: Final = 40

_SCRIPT: Final = '''"""Found by the fuzzer, seed {seed}: {found}"""

import torch
import torch.nn.functional as F
{device}

{source}

def inputs():
{storages}
    return [
{views}
    ]


def run(function):
    given = inputs()
{call}

def test_program():
    eager = run(program)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="coilwork", options={options}{dynamic})
    for ours, theirs in zip(run(compiled), eager, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, check_stride=theirs.numel() > 0)


if __name__ == "__main__":
    test_program()
'''
_FORWARD: Final = """    results = function(*given)
    return [*results, *given]
"""
_BACKWARD: Final = """    leaves = [value.requires_grad_() for value in given if value.is_floating_point()]
    results = function(*given)
    weighed = [(r * (torch.arange(r.numel()) % 7 - 3).div(4).reshape(r.shape)).sum() for r in results if \
r.requires_grad]
    found = torch.autograd.grad(sum(weighed), leaves, allow_unused=True)
    return [value.detach() for value in (*results, *found, *given) if value is not None]
"""


def script(program: Program, found: str) -> str:
    """The text; `found` says in a line what is wrong."""
    options = {"strict": True, "cache": False, **dict(program.options)}
    return _SCRIPT.format(
        seed=program.seed,
        device="" if program.device == "cpu" else f"\ntorch.set_default_device({program.device!r})\n",
        found=" ".join(found.split()).replace('"', "'")[:150],
        source=program.source(),
        storages="\n".join(_storage_lines(program)),
        views="\n".join(
            f"        {v.base or v.name}.as_strided({v.shape}, {v.stride}, {v.offset}),  # {v.name}"
            for v in program.inputs
        ),
        call=_BACKWARD if program.gradients else _FORWARD,
        options=options,
        dynamic=", dynamic=True" if program.dynamic else "",
    )


def _storage_lines(program: Program) -> list[str]:
    """One line per storage: its numbers if they are few, else random ones of the same kind."""
    lines = ["    torch.manual_seed(0)"]
    for value, tensor in zip(program.inputs, materialize(program), strict=True):
        if value.base:
            continue
        storage = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
        if storage.numel() <= MOST_WRITTEN:
            text = f"torch.tensor({_numbers(storage)}, dtype=torch.{value.dtype})"
        elif value.fill.startswith("index:"):
            bound = max(1, int(value.fill.removeprefix("index:")))
            text = f"torch.randint(0, {bound}, ({storage.numel()},)).to(torch.{value.dtype})"
        elif value.fill == "permutation":
            row = value.shape[-1]
            text = f"torch.rand({-(-storage.numel() // row)}, {row}).argsort(1).flatten()"
        elif value.dtype == "bool":
            text = f"torch.randint(0, 2, ({storage.numel()},)).bool()"
        elif tensor.is_floating_point():
            text = f"(torch.randint(-8, 9, ({storage.numel()},)) / 4).to(torch.{value.dtype})"
        else:
            text = f"torch.randint(0, 9, ({storage.numel()},)).to(torch.{value.dtype})"
        lines.append(f"    {value.name} = {text}")
    return lines


def _numbers(storage: Tensor) -> str:
    texts = (repr(number) for number in storage.tolist())
    odd = {"nan": "float('nan')", "inf": "float('inf')", "-inf": "-float('inf')"}
    return f"[{', '.join(odd.get(text, text) for text in texts)}]"
