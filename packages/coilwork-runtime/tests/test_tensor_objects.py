"""Tensors that a program is given: found in their objects, as plain ones, parameters or of other types, and
kept alive.
"""

from __future__ import annotations

import gc
import shutil
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch
from executor_assembly import Assembly

from coilwork_cache import MemoryStore
from coilwork_runtime import load_native
from coilwork_runtime.executor.native_program import NativeProgram, find_executor_extension

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)


class Other(torch.Tensor):
    """A type that nobody has told of."""


@pytest.fixture(scope="module")
def program() -> NativeProgram:
    asm = Assembly("net")
    for name in ("a", "b"):
        asm.input(name)
    asm.alloc("y", asm.layout(4, 4))
    asm.call("aten.mm.out", [asm.ref("a"), asm.ref("b")], out=[("out", "y")])
    asm.free("a")
    return load_native(
        asm.returns("y", "b"), launchers={}, constants={}, fallback=lambda: list, store=MemoryStore()
    )


def test_their_place_is_found() -> None:
    assert find_executor_extension(None).learn([torch.ones(2)])
    with pytest.raises(TypeError, match="list"):
        find_executor_extension(None).learn(torch.ones(2))


@pytest.fixture(params=[True, False], ids=["made", "from capsules"])
def objects(request: pytest.FixtureRequest, program: NativeProgram) -> Iterator[None]:
    """Objects of results are made by torch's own function, or as where it is not known."""
    extension = find_executor_extension(None)
    assert extension.makes_objects(request.param) == request.param
    yield
    extension.makes_objects(True)


@pytest.mark.usefixtures("objects")
def test_results_are_objects_of_their_own(program: NativeProgram) -> None:
    a, b = torch.randn(4, 4), torch.nn.Parameter(torch.randn(4, 4))
    (first, same), (second, _) = program.direct(a, b), program.direct(a, b)
    assert same is b and first is not second
    assert type(first) is torch.Tensor and sys.getrefcount(first) == 2
    torch.testing.assert_close(first, (a @ b).detach())
    assert not first.requires_grad and first.grad_fn is None
    gone = weakref.ref(first)
    del first
    assert gone() is None


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize("boxed", [False, True], ids=["direct", "boxed"])
def test_tensors_of_subclasses_and_parameters_are_taken(program: NativeProgram, boxed: bool) -> None:
    plain, other = torch.randn(4, 4), torch.randn(4, 4).as_subclass(Other)
    parameter = torch.nn.Parameter(torch.randn(4, 4))
    for a in (plain, other, parameter, plain.t(), torch.randn(8, 8)[::2, ::2]):
        for b in (plain, parameter, other):
            with torch.no_grad():
                y, same = program.call([a, b]) if boxed else program.direct(a, b)
                torch.testing.assert_close(y, torch.Tensor.mm(a, b).as_subclass(torch.Tensor))
            assert same is b


def test_inputs_go_when_they_may(program: NativeProgram) -> None:
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    given = [a, b]
    gone = weakref.ref(a)
    program.call(given)
    del a
    gc.collect()
    assert given == [] and gone() is None


def test_what_is_no_tensor_is_refused(program: NativeProgram) -> None:
    for wrong in (None, 1.5, "text"):
        with pytest.raises(TypeError):
            program.direct(torch.ones(4, 4), wrong)
    program.direct(torch.ones(4, 4), torch.ones(4, 4))
