"""What a case is: a function, inputs for it, and the fewest bytes that it can move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Arguments = tuple[Any, ...]
Set = Literal["main", "more", "cached", "other", "later", "further", "open", "unlike"]
SETS: tuple[Set, ...] = ("main", "more", "cached", "other", "later", "further", "open", "unlike")


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """Makes inputs on `device`; without `values` their memory is left as it is, for those who only look at
    shapes.
    """

    device: torch.device
    values: bool = True

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Numbers around zero."""
        if not self.values:
            return torch.empty(shape, device=self.device, dtype=dtype)
        return torch.randn(shape, device=self.device, dtype=dtype)

    def near_one(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Numbers whose products neither vanish nor overflow."""
        return (
            self.normal(*shape, dtype=dtype).mul_(0.02).add_(1)
            if self.values
            else self.normal(*shape, dtype=dtype)
        )

    def integers(self, *shape: int, below: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers from 0 to `below - 1`, made even without `values`: how many differ decides on bytes."""
        return torch.randint(below, shape, device=self.device, dtype=dtype)

    def bits(self, *shape: int, one_in: int) -> Tensor:
        """Booleans, one in `one_in` true."""
        if not self.values:
            return torch.empty(shape, device=self.device, dtype=torch.bool)
        return self.integers(*shape, below=one_in) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function to compile, and what is known of its memory traffic.

    Attributes:
        name: what it is, with its size and, unless bf16, its type; unique.
        function: what is compiled. Its results are tensors, nested or not.
        inputs: its arguments, of the numbers in `size`.
        size: numbers for a GPU; `tiny` those for a smoke test.
        train: also take gradients of all floating-point inputs.
        mutates: positions of the arguments that it changes; they are its results then, it returns nothing.
        reads: bytes of the inputs that have to be read, where that is not all of them, of inputs.
        again: bytes that have to be read once more, of inputs, and `why`.
        check: judges results where rounding is not the only freedom; says what is wrong, or nothing. Called
            with inputs and results.
        random: two calls give different results.
        dynamic: all sizes are left open.
        traced: numbers of the call that it is compiled for, if those of `size` are another's: all sizes are
            open then.
        set: `main`; `more` sizes and types of the same kinds; `cached` where all fits the second-level cache,
            which is then not flushed; `other` kinds of kernels, chosen before anything was known of them, and
            `later` and `further` ones, likewise; `open` cases of the others with open sizes; `unlike` those
            called with other sizes than they were compiled for, and with such sizes known.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[..., Arguments]
    size: tuple[int, ...]
    tiny: tuple[int, ...]
    train: bool = False
    mutates: tuple[int, ...] = ()
    reads: Callable[..., int] | None = None
    again: Callable[..., int] | None = None
    why: str = ""
    check: Callable[[Arguments, Sequence[Tensor]], str] | None = None
    random: bool = False
    dynamic: bool = False
    traced: tuple[int, ...] = ()
    set: Set = "main"

    def make(self, make: Make, *, tiny: bool) -> Arguments:
        """Arguments for `function`."""
        return self.inputs(make, *(self.tiny if tiny else self.size))


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestBytes:
    """What a case moves at least: inputs read, results written, and inputs `again`."""

    read: int
    written: int
    again: int

    @property
    def total(self) -> int:
        return self.read + self.written + self.again


def tensors(values: object) -> list[Tensor]:
    """Every tensor in nested `values`."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def count_stored_bytes(value: Tensor) -> int:
    """Bytes of the elements of `value`, those that expansion repeats counted once."""
    count = value.element_size()
    for extent, stride in zip(value.shape, value.stride(), strict=True):
        count *= extent if stride else min(extent, 1)
    return count


def fewest_bytes(case: Case, inputs: Arguments, results: Sequence[Tensor]) -> FewestBytes:
    """Count the fewest bytes of one call of `case`, whose `results` are values and, in training, gradients.

    In training the gradient of the result is read, too.
    """
    read = sum(map(count_stored_bytes, tensors(inputs))) if case.reads is None else case.reads(*inputs)
    if case.train:
        read += count_stored_bytes(results[0])
    again = case.again(*inputs) if case.again is not None else 0
    return FewestBytes(read=read, written=sum(map(count_stored_bytes, results)), again=again)


def first_bytes(first: Tensor, *_: object) -> int:
    """Bytes of the first input: what `Case.again` most often is."""
    return count_stored_bytes(first)


def call_of(
    case: Case, function: Callable[..., Any], inputs: Arguments, upstream: list[Tensor] | None = None
) -> Callable[[], list[Tensor]]:
    """One call of `function`, which stands for that of `case`: its results, and in training the gradients.

    `upstream` holds the gradient of the result, or is empty and gets one, of torch's generator, at the first
    call.
    """
    if not case.train:

        def infer() -> list[Tensor]:
            with torch.no_grad():
                result = function(*inputs)
            return tensors([inputs[k] for k in case.mutates] if case.mutates else result)

        return infer
    arguments = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    leaves = [x for x in arguments if x.requires_grad]
    gradients: list[Tensor] = [] if upstream is None else upstream

    def train() -> list[Tensor]:
        result = function(*arguments)
        if not gradients:
            gradients.append(torch.randn_like(result))
        return [result.detach(), *torch.autograd.grad(result, leaves, gradients[0])]

    return train
