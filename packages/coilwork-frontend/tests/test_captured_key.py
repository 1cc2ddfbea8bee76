"""Which captured graphs have a key, and what tells two of them apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from coilwork_frontend.captured_key import make_captured_key
from coilwork_frontend.graph_text import UnkeyableGraphError


def key_of(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> str:
    """Return the key text of the graph that Dynamo captures, or why it has none, after a question mark."""
    torch._dynamo.reset()
    texts: list[str] = []

    def note(gm: fx.GraphModule, example_inputs: Any) -> Any:
        try:
            texts.append(make_captured_key(gm, example_inputs))
        except UnkeyableGraphError as error:
            texts.append(f"?{error}")
        return gm.forward

    torch.compile(function, backend=note, dynamic=dynamic)(*inputs)
    (text,) = texts
    return text


def plain(x: Tensor) -> Tensor:
    return torch.nn.functional.silu(x).sum(0) + 1


def test_equal_programs_have_one_key() -> None:
    x = torch.randn(3, 4)
    assert key_of(plain, x) == key_of(plain, x.clone()).removeprefix("?")


def test_keys_tell_apart_what_tracing_reads() -> None:
    x = torch.randn(3, 4)
    keys = [key_of(plain, x), key_of(lambda x: torch.nn.functional.silu(x).sum(0) + 2, x)]
    keys += [key_of(plain, one) for one in (x.double(), x.t().contiguous().t(), torch.randn(3, 5))]
    keys.append(key_of(plain, torch.randn(3, 4, requires_grad=True)))
    keys.append(key_of(plain, torch.randn(3, 4, requires_grad=True) * 1))
    keys.append(key_of(plain, torch.nn.Parameter(torch.randn(3, 4))))
    with torch.no_grad():
        keys.append(key_of(plain, torch.randn(3, 4, requires_grad=True)))
    with torch.autocast("cpu", torch.bfloat16):
        keys.append(key_of(plain, x))
    assert not any(key.startswith("?") for key in keys)
    assert len(set(keys)) == len(keys)


choose_sines = partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])


def make_row() -> Tensor:
    return torch.randn(4, requires_grad=True)


def test_nested_graphs_are_in_the_key() -> None:
    def branch(x: Tensor, number: int) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * number, (x,))

    x = make_row()
    keys = [key_of(lambda x, number=number: branch(x, number), x) for number in (2, 3)]
    keys += [key_of(lambda x: checkpoint(torch.sin, x, use_reentrant=False), x), key_of(torch.sin, x)]
    assert not any(key.startswith("?") for key in keys)
    assert len(set(keys)) == 4


WHOLE = torch.randn(8)


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (
            lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=choose_sines),
            (make_row(),),
            "_checkpoint_context_fn",
        ),
        (lambda x: torch.fft.fft(x).abs(), (make_row(),), "complex"),
        (lambda x, y: x.add_(1) * y, (WHOLE[:4], WHOLE[4:]), "share memory"),
        (lambda x: x.nonzero(), (WHOLE,), "data"),
    ],
    ids=["checkpoint", "complex", "shared", "from data"],
)
def test_what_may_be_traced_otherwise_has_none(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], reason: str
) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        text = key_of(function, *inputs)
    assert text.startswith("?") and reason in text


def test_symbolic_sizes_share_keys_of_similar_sizes() -> None:
    keys = [key_of(plain, torch.randn(*sizes), dynamic=True) for sizes in ((25, 4), (27, 4), (27, 64), (4, 4))]
    assert not any(key.startswith("?") for key in keys)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
