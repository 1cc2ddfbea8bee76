"""Convolutions that the native executor hands to cuDNN: what it is asked, what is kept per shape, and what
ATen does instead.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_assembly import SETTLE, Assembly, listing, u8
from stub_convolutions import StubConvolutions
from torch import Tensor

from coilwork_cache import MemoryStore
from coilwork_runtime import ConvolutionLibrary, ExecutorUnavailableError, load_native
from coilwork_runtime.executor import native_program as program_module
from coilwork_runtime.executor.native_program import NativeProgram
from coilwork_runtime.torch_compat import get_convolution_settings

NONE, NO, YES = u8(0), u8(4) + u8(0), u8(4) + u8(1)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> StubConvolutions:
    return StubConvolutions(tmp_path_factory.mktemp("convolutions"))


@pytest.fixture(autouse=True)
def as_it_was(stub: StubConvolutions) -> Iterator[None]:
    yield
    for name in ("unrepeatable", "unsupported", "fail_with", "workspace_bytes"):
        stub.set(name, 0)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


def load(
    store: MemoryStore, stub: StubConvolutions, data: bytes, settings: Callable[[], int] = lambda: 0
) -> NativeProgram:
    def no_fallback() -> Callable[[list[Any]], Any]:
        raise AssertionError("no fallback is needed")

    library = ConvolutionLibrary(path=str(stub.path), device="cpu", settings=settings)
    return load_native(
        data, launchers={}, constants={}, fallback=no_fallback, store=store, convolutions=library
    )


def integers(values: Sequence[int]) -> bytes:
    return u8(11) + listing([u8(3) + struct.pack("<q", value) for value in values])


def shape_of(form: Mapping[str, Any], space: int) -> list[bytes]:
    """stride, padding, dilation, transposed, output_padding, groups"""

    def spread(name: str, default: int) -> bytes:
        given = form.get(name, default)
        return integers(given if isinstance(given, tuple) else (given,) * space)

    transposed = YES if form.get("transposed") else NO
    groups = u8(3) + struct.pack("<q", form.get("groups", 1))
    return [
        spread("stride", 1),
        spread("padding", 0),
        spread("dilation", 1),
        transposed,
        spread("output_padding", 0),
        groups,
    ]


def declared(asm: Assembly, like: Tensor) -> bytes:
    return asm.layout(*like.shape, strides=like.stride(), dtype=str(like.dtype).removeprefix("torch."))


def forward_program(
    x: Tensor, like: Tensor, form: Mapping[str, Any], *, bias: bool = False, implements: str = "convolution"
) -> bytes:
    asm = Assembly("net")
    names = ["x", "w", "b"] if bias else ["x", "w"]
    for name in names:
        asm.input(name)
    last = asm.ref("b") if bias else NONE
    layout = declared(asm, like)
    asm.call(
        "aten.convolution.default",
        [asm.ref("x"), asm.ref("w"), last, *shape_of(form, x.dim() - 2)],
        results=["y"],
        implements=implements,
    )
    asm.add(SETTLE, asm.slot("y") + layout + u8(1), "settle")
    return asm.returns("y")


def backward_program(
    x: Tensor, w: Tensor, form: Mapping[str, Any], wanted: Sequence[bool] = (True, True, False)
) -> bytes:
    asm = Assembly("net")
    for name in ("gradient", "x", "w"):
        asm.input(name)
    likes = {"dx": x, "dw": w, "db": torch.empty(w.shape[0], dtype=w.dtype)}
    layouts = {name: declared(asm, like) for name, like in likes.items()}
    results = [name if want else None for name, want in zip(likes, wanted, strict=True)]
    sizes = integers([w.shape[0]]) if wanted[2] else NONE
    mask = u8(11) + listing([YES if want else NO for want in wanted])
    arguments = [asm.ref(name) for name in ("gradient", "x", "w")]
    asm.call(
        "aten.convolution_backward.default",
        [*arguments, sizes, *shape_of(form, x.dim() - 2), mask],
        results=results,
        single=False,
        implements="convolution gradients",
    )
    made = [name for name in results if name]
    for name in made:
        asm.add(SETTLE, asm.slot(name) + layouts[name] + u8(1), "settle")
    return asm.returns(*made)


def both(
    store: MemoryStore, stub: StubConvolutions, data: bytes, *inputs: Tensor
) -> tuple[list[Tensor], int]:
    """The results, and how many convolutions the library computed."""
    program, before = load(store, stub, data), stub.number("convolutions")
    results = list(program.call(list(inputs)))
    counters = program.counters()
    assert counters["convolutions"] + counters["refused_convolutions"] == 1
    return results, stub.number("convolutions") - before


FORMS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 4, 6, 7), (5, 4, 3, 3), {"padding": 1}),
    "1x1": ((2, 4, 3, 3), (3, 4, 1, 1), {}),
    "strided": ((2, 3, 9, 8), (4, 3, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "dilated": ((1, 3, 9, 9), (4, 3, 3, 3), {"dilation": (2, 3), "padding": (0, 3)}),
    "grouped": ((2, 6, 5, 5), (4, 3, 3, 3), {"groups": 2}),
    "line": ((2, 3, 11), (4, 3, 4), {"stride": 2, "padding": 3, "dilation": 2}),
    "volume": ((1, 2, 4, 5, 3), (3, 2, 2, 3, 1), {"stride": (1, 2, 1), "padding": (1, 0, 1)}),
    "transposed": (
        (2, 4, 3, 5),
        (4, 3, 3, 2),
        {"stride": 2, "padding": 1, "transposed": True, "output_padding": 1},
    ),
    "transposed in groups": (
        (2, 4, 5, 5),
        (4, 3, 3, 3),
        {"stride": 2, "groups": 2, "dilation": 2, "transposed": True},
    ),
    "transposed line": ((2, 4, 6), (4, 3, 4), {"stride": 3, "transposed": True}),
}


def convolve(x: Tensor, w: Tensor, form: Mapping[str, Any], bias: Tensor | None = None) -> Tensor:
    space = x.dim() - 2

    def spread(name: str, default: int) -> list[int]:
        given = form.get(name, default)
        return list(given) if isinstance(given, tuple) else [given] * space

    lists = [spread("stride", 1), spread("padding", 0), spread("dilation", 1)]
    transposed, more = bool(form.get("transposed")), spread("output_padding", 0)
    found: Tensor = torch.ops.aten.convolution(x, w, bias, *lists, transposed, more, form.get("groups", 1))
    return found


def operands(name: str, dtype: torch.dtype, layout: str) -> tuple[Tensor, Tensor]:
    """Of small integers, whose sums no type rounds."""
    shape, weight_shape, _ = FORMS[name]
    last = {4: torch.channels_last, 5: torch.channels_last_3d}

    def laid_out(value: Tensor) -> Tensor:
        return (
            value.to(memory_format=last[value.dim()]) if layout == "last" and value.dim() in last else value
        )

    x, w = (
        torch.randint(-2, 3, shape, dtype=torch.float32),
        torch.randint(-2, 3, weight_shape, dtype=torch.float32),
    )
    return laid_out(x.to(dtype)), laid_out(w.to(dtype))


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_convolutions_of_each_form_and_layout_are_right(
    stub: StubConvolutions, store: MemoryStore, name: str, dtype: torch.dtype, layout: str
) -> None:
    x, w = operands(name, dtype, layout)
    form = FORMS[name][2]
    exact_x, exact_w = x.double().requires_grad_(), w.double().requires_grad_()
    exact = convolve(exact_x, exact_w, form)
    # kernels lay results out as what they are computed from
    like = torch.empty_like(exact, dtype=dtype)
    if layout == "last" and x.dim() > 3:
        like = like.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    (y,), done = both(store, stub, forward_program(x, like, form), x, w)
    assert done == 1 and y.stride() == like.stride()
    assert torch.equal(y.double(), exact)
    gradient = torch.randint(-1, 2, exact.shape).to(dtype)
    gradient = torch.empty_like(like).copy_(gradient)
    exact.backward(gradient.double())
    assert exact_x.grad is not None and exact_w.grad is not None
    for wanted in ((True, True, False), (True, False, False), (False, True, False)):
        results, done = both(store, stub, backward_program(x, w, form, wanted), gradient, x, w)
        assert done == sum(wanted)
        expected = [one for one, want in zip((exact_x.grad, exact_w.grad), wanted[:2], strict=True) if want]
        for one, true in zip(results, expected, strict=True):
            assert torch.equal(one, true.to(dtype))


def refused() -> Iterator[tuple[str, Tensor, Tensor, dict[str, Any], str]]:
    x, w = operands("3x3", torch.bfloat16, "last")
    first = x.contiguous()
    yield "float32", x.float(), w.float(), {"padding": 1}, ""
    yield "layouts that differ", first, w, {"padding": 1}, ""
    yield "gaps", torch.empty(2, 4, 6, 9, dtype=x.dtype).copy_(F.pad(x, (0, 2)))[..., :7], w, {}, ""
    yield (
        "one channel in a group",
        x,
        torch.ones(4, 1, 3, 3).bfloat16().to(memory_format=torch.channels_last),
        {"groups": 4},
        "",
    )
    yield "no images", x[:0], w, {}, ""
    yield "channels that differ", x[:, :3].contiguous(memory_format=torch.channels_last), w, {}, "channels"
    yield "weights beyond the image", x[..., :2, :2].contiguous(), w.contiguous(), {}, "greater than"


REFUSED = list(refused())


@pytest.mark.parametrize(("name", "x", "w", "form", "error"), REFUSED, ids=[one[0] for one in REFUSED])
def test_what_is_out_of_the_ordinary_is_atens(
    stub: StubConvolutions,
    store: MemoryStore,
    name: str,
    x: Tensor,
    w: Tensor,
    form: dict[str, Any],
    error: str,
) -> None:
    if error:
        program = load(store, stub, forward_program(x, torch.empty(2, 5, 4, 5, dtype=x.dtype), form))
        with pytest.raises(RuntimeError, match=error):
            program.call([x, w])
        return
    expected = convolve(x, w, form)
    (y,), done = both(store, stub, forward_program(x, expected, form), x, w)
    assert done == 0
    torch.testing.assert_close(y, expected)


def test_a_bias_is_atens(stub: StubConvolutions, store: MemoryStore) -> None:
    x, w = operands("3x3", torch.bfloat16, "last")
    bias = torch.ones(5, dtype=torch.bfloat16)
    expected = convolve(x, w, {}, bias)
    program = load(store, stub, forward_program(x, expected, {}, bias=True))
    (y,) = program.call([x, w, bias])
    torch.testing.assert_close(y, expected)
    gradient = torch.ones_like(expected)
    results = load(store, stub, backward_program(x, w, {}, (True, True, True))).call([gradient, x, w])
    torch.testing.assert_close(results[2], gradient.sum((0, 2, 3)))
    assert program.counters()["convolutions"] == program.counters()["refused_convolutions"] == 0


def test_a_call_that_implements_no_convolution_is_atens(stub: StubConvolutions, store: MemoryStore) -> None:
    """The program says what a call is: an operator's name alone says nothing."""
    x, w = operands("3x3", torch.bfloat16, "last")
    like = convolve(x, w, FORMS["3x3"][2])
    for implements, computed in (("convolution", 1), ("", 0), ("product", 0)):
        data = forward_program(x, like, FORMS["3x3"][2], implements=implements)
        program, before = load(store, stub, data), stub.number("convolutions")
        assert torch.equal(program.call([x, w])[0], like)
        assert stub.number("convolutions") - before == computed


def test_a_plan_is_made_once_per_shape(stub: StubConvolutions, store: MemoryStore) -> None:
    x, w = operands("1x1", torch.float16, "last")
    like = convolve(x, w, {})
    program, before = load(store, stub, forward_program(x, like, {})), stub.number("heuristics")
    for _ in range(3):
        program.call([x, w])
    made = stub.number("heuristics") - before
    assert made <= 1
    load(store, stub, forward_program(x, like, {})).call([x, w])
    assert stub.number("heuristics") == before + made
    # what was made for one call is gone after it
    left = stub.number("made") - stub.number("destroyed")
    program.call([x, w])
    assert stub.number("made") - stub.number("destroyed") == left


def test_engines_that_repeat_their_bits_and_have_a_plan(stub: StubConvolutions, store: MemoryStore) -> None:
    def run(batch: int) -> tuple[Tensor, Tensor, int]:
        x, w = torch.ones(batch, 3, 5, 5).half(), torch.ones(2, 3, 2, 2).half()
        like = convolve(x, w, {})
        (y,), done = both(store, stub, forward_program(x, like, {}), x, w)
        return y, like, done

    for name, value, engine in (("unrepeatable", 2, 2), ("unsupported", 3, 3)):
        stub.set(name, value)
        y, like, done = run(3 + value)
        assert done == 1 and stub.number("last_engine") == engine
        torch.testing.assert_close(y, like)
    # none of both is left: ATen's from then on
    stub.set("unrepeatable", 4)
    before = stub.number("heuristics")
    for _ in range(2):
        y, like, done = run(17)
        assert done == 0
        torch.testing.assert_close(y, like)
    assert stub.number("heuristics") == before + 2


def test_what_fails_is_done_again_by_aten(stub: StubConvolutions, store: MemoryStore) -> None:
    x, w = operands("3x3", torch.bfloat16, "last")
    gradient = torch.ones_like(convolve(x, w, {}))
    stub.set("fail_with", 5000)
    results, done = both(store, stub, backward_program(x, w, {}), gradient, x, w)
    assert done == 0
    expected = torch.ops.aten.convolution_backward(
        gradient, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    for one, other in zip(results, expected, strict=False):
        torch.testing.assert_close(one, other)


def test_workspace_comes_from_torch(stub: StubConvolutions, store: MemoryStore) -> None:
    for batch, size in ((7, 4096), (8, 2 << 20), (9, 48 << 20)):
        stub.set("workspace_bytes", size)
        x, w = torch.ones(batch, 3, 5, 5).half(), torch.ones(2, 3, 2, 2).half()
        like = convolve(x, w, {})
        (y,), done = both(store, stub, forward_program(x, like, {}), x, w)
        assert done == 1 and stub.number("last_workspace") != 0
        torch.testing.assert_close(y, like)


def test_what_torch_says(stub: StubConvolutions, store: MemoryStore) -> None:
    x, w = operands("3x3", torch.bfloat16, "last")
    like, said = convolve(x, w, {}), [0]
    program = load(store, stub, forward_program(x, like, {}), lambda: said[0])
    for setting, done in ((0, 1), (-1, 1), (0, 2)):
        said[0] = setting
        torch.testing.assert_close(program.call([x, w])[0], like)
        assert program.counters()["convolutions"] == done
    cudnn = torch.backends.cudnn
    with cudnn.flags(enabled=True):
        assert get_convolution_settings() == 0
    for flags in ({"enabled": False}, {"enabled": True, "benchmark": True}):
        with cudnn.flags(**flags):
            assert get_convolution_settings() == -1


def test_a_library_that_is_not_there(store: MemoryStore, tmp_path: Path) -> None:
    x, w = operands("3x3", torch.bfloat16, "last")
    like = convolve(x, w, {})
    data, absent = forward_program(x, like, {}), str(tmp_path / "libabsent.so")

    def loaded(*, required: bool) -> NativeProgram:
        library = ConvolutionLibrary(path=absent, device="cpu", required=required)
        return load_native(
            data,
            launchers={},
            constants={},
            fallback=lambda: lambda args: args,
            store=store,
            convolutions=library,
        )

    with pytest.raises(ExecutorUnavailableError, match="cuDNN cannot be loaded"):
        loaded(required=True)
    program = loaded(required=False)
    torch.testing.assert_close(program.call([x, w])[0], like)
    assert program.counters()["refused_convolutions"] == 0


def test_numbers_are_those_of_the_header() -> None:
    """Where cuDNN's header is installed."""
    found = sorted(Path(torch.__file__).parents[1].glob("nvidia/**/cudnn_graph.h"))
    if not found:
        pytest.skip("no cudnn_graph.h here")
    header = found[0].read_text(encoding="utf-8")
    ours = (program_module.FOLDER / "interfaces/cudnn.hpp").read_text(encoding="utf-8")
    theirs = dict(re.findall(r"\bCUDNN_(\w+)(?: CUDNN_DEPRECATED_ENUM)?\s*= (\d+)", header))
    mine = dict(re.findall(r"\b([A-Z][A-Z0-9_]+) = (\d+)", ours.partition("using Handle")[0]))
    assert len(mine) > 50
    for name, value in mine.items():
        prefixed = ("STATUS_", "", "BACKEND_")
        known = [theirs[prefix + name] for prefix in prefixed if prefix + name in theirs]
        if known:
            assert known[0] == value, name
        else:
            assert name == "MOST_NOTES"
