"""A program of the set: a function or a module, and what it is given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Function = Callable[..., Any]
Compiler = Callable[[Function], Function]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function and its arguments, on the default device."""

    function: Function
    given: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case.

    Attributes:
        name: how it is named in tables.
        build: makes its program.
        trains: a call is a forward and a backward pass, else it is a forward pass.
        is_exact: float64 says what results should be; else eager's results do.
        is_random: results are drawn, and none are compared.
        tf32: products of f32 may round their factors.
    """

    name: str
    build: Callable[[], Program]
    trains: bool = False
    is_exact: bool = True
    is_random: bool = False
    tf32: bool = False

    @property
    def mode(self) -> str:
        """`train` or `infer`."""
        return "train" if self.trains else "infer"


def draw(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return numbers of a normal distribution with the deviation `scale`."""
    return (torch.randn(*shape) * scale).to(dtype)


def draw_weight(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return a weight; its last dimension is summed over, and sums are near 1."""
    return draw(*shape, scale=shape[-1] ** -0.5, dtype=dtype)


def is_wide(x: Tensor) -> bool:
    """Return True if `x` has floating-point numbers of 16 bits or more."""
    return (x.is_floating_point() or x.is_complex()) and x.element_size() > 1


def open_call(case: Case, program: Program, compiler: Compiler, *, exact: bool = False) -> Callable[[], Any]:
    """Return a call of `program` as `compiler` compiles it, in float64 if it is to be `exact`.

    It returns results, and for training the gradients of what is given and of parameters after them.
    """
    function, given = program.function, program.given
    if exact:
        function, given = _widen_function(function), tuple(map(_widen, given))
    compiled = compiler(function)
    if not case.trains:
        return partial(_infer, compiled, given)
    leaves = [x.detach().requires_grad_() if is_wide(x) else x for x in given]
    wanted = [x for x in leaves if x.requires_grad]
    wanted += list(function.parameters()) if isinstance(function, nn.Module) else []
    return partial(_train, compiled, leaves, wanted)


def _infer(compiled: Function, given: Iterable[Tensor]) -> Any:
    with torch.no_grad():
        return compiled(*given)


def _train(compiled: Function, given: Iterable[Tensor], wanted: list[Tensor]) -> tuple[Tensor, ...]:
    result: Tensor = compiled(*given)
    # a power of two, which is not rounded
    gradients = torch.autograd.grad(result, wanted, torch.full_like(result, 0.5))
    return (result.detach(), *gradients)


def _widen(x: Tensor) -> Tensor:
    if not is_wide(x):
        return x
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _widen_function(function: Function) -> Function:
    if isinstance(function, nn.Module):
        return copy.deepcopy(function).double()
    return function
