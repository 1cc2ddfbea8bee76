"""Which captured graphs have a key, and what tells two of them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._functorch import config as functorch_config
from torch.fx.experimental import _config as sizes_config
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


@contextmanager
def setting(change: Callable[[Any], object], before: object, after: object) -> Iterator[None]:
    """Change a global setting of torch's while it is entered."""
    change(after)
    try:
        yield
    finally:
        change(before)


def set_to(owner: object, name: str, value: object) -> AbstractContextManager[None]:
    """Give an attribute of torch's another value."""
    return setting(partial(setattr, owner, name), getattr(owner, name), value)


def turn(owner: object, name: str) -> AbstractContextManager[None]:
    """Turn a flag of torch's round."""
    return set_to(owner, name, not getattr(owner, name))


cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
# torch adds it to the module at run time
onednn_products = attrgetter("matmul")(torch.backends.mkldnn)
STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "as it is": nullcontext,
    "no grad": torch.no_grad,
    "bf16 on CPUs": lambda: torch.autocast("cpu", torch.bfloat16),
    "f16 on CPUs": lambda: torch.autocast("cpu", torch.float16),
    "bf16 on GPUs": lambda: torch.autocast("cuda", torch.bfloat16),
    "casts that are not kept": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, False, True),
    "memory that is not filled": lambda: turn(torch.utils.deterministic, "fill_uninitialized_memory"),
    "f64": lambda: setting(torch.set_default_dtype, torch.float32, torch.float64),
    "default device": lambda: setting(torch.set_default_device, None, "meta"),
    "products in TF32": lambda: set_to(cuda.matmul, "fp32_precision", "tf32"),
    "products in bf16": lambda: set_to(onednn_products, "fp32_precision", "bf16"),
    "convolutions in f32": lambda: turn(cudnn, "allow_tf32"),
    "reduced sums": lambda: turn(cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "repeatable convolutions": lambda: turn(cudnn, "deterministic"),
    "no flash": lambda: setting(cuda.enable_flash_sdp, True, False),
    "no plain attention": lambda: setting(cuda.enable_math_sdp, True, False),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "no donated buffers": lambda: functorch_config.patch(donated_buffer=False),
    "memory budget": lambda: functorch_config.patch(activation_memory_budget=0.5),
    "autocast of gradients": lambda: functorch_config.patch(backward_pass_autocast="off"),
    "sizes by themselves": lambda: set_to(sizes_config, "use_duck_shape", False),
}


def test_settings_that_tracing_reads_are_in_the_key() -> None:
    """One thing differs at a time."""
    x, keys = torch.randn(3, 4), dict[str, str]()
    for name, state in STATES.items():
        with state():
            keys[name] = key_of(plain, x)
    assert not [name for name, key in keys.items() if key.startswith("?")]
    names: dict[str, list[str]] = {}
    for name, key in keys.items():
        names.setdefault(key, []).append(name)
    assert [equal for equal in names.values() if len(equal) > 1] == []
    # a state leaves nothing behind
    assert key_of(plain, x) == keys["as it is"]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (lambda: torch.autograd.graph.save_on_cpu(), "saved for backward"),
        (torch.autograd.forward_ad.dual_level, "forward mode"),
        (lambda: functorch_config.patch(debug_assert=True), "checks its own"),
    ],
    ids=["saved", "forward mode", "debug"],
)
def test_states_that_other_processes_cannot_repeat_have_none(
    state: Callable[[], AbstractContextManager[Any]], reason: str
) -> None:
    with state():
        text = key_of(plain, torch.randn(3, 4))
    assert text.startswith("?") and reason in text


def make_inputs() -> dict[str, tuple[Tensor, ...]]:
    """Inputs that differ in one thing each."""
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    static = torch.randn(3, 4)
    torch._dynamo.mark_static_address(static)
    with torch.inference_mode():
        inference = torch.randn(3, 4)
    return {
        "plain": (a, b),
        "gradient of the first": (a.clone().requires_grad_(), b),
        "gradient of the second": (a, b.clone().requires_grad_()),
        "gradient of both": (a.clone().requires_grad_(), b.clone().requires_grad_()),
        "no leaf": (a.clone().requires_grad_() * 1, b),
        "parameter": (torch.nn.Parameter(a), b),
        "parameter without gradient": (torch.nn.Parameter(a, requires_grad=False), b),
        "static": (static, b),
        "of inference": (inference, b),
        "f64": (a.double(), b.double()),
        "f16": (a.half(), b.half()),
        "sizes": (torch.randn(3, 5), torch.randn(3, 5)),
        "strides": (a.t().contiguous().t(), b),
        "offset": (torch.randn(13)[1:].view(3, 4), b),
        "view": (torch.randn(6, 4)[:3], b),
        "view of a leaf": (torch.randn(6, 4, requires_grad=True)[:3], b),
        "device": (a.to("meta"), b.to("meta")),
    }


def test_facts_about_inputs_are_in_the_key() -> None:
    keys = {name: key_of(lambda x, y: (x * y).sum(0), *inputs) for name, inputs in make_inputs().items()}
    assert not [name for name, key in keys.items() if key.startswith("?")]
    names: dict[str, list[str]] = {}
    for name, key in keys.items():
        names.setdefault(key, []).append(name)
    assert [equal for equal in names.values() if len(equal) > 1] == []


def test_calls_and_their_arguments_are_in_the_key() -> None:
    x = torch.randn(3, 4)
    programs: list[Callable[[Tensor], Any]] = [
        plain,
        lambda x: torch.nn.functional.silu(x).sum(0) + 2,
        lambda x: torch.nn.functional.silu(x).sum(0) + 1.0,
        lambda x: torch.nn.functional.silu(x).sum(1) + 1,
        lambda x: torch.nn.functional.silu(x).sum(0, keepdim=True) + 1,
        lambda x: torch.nn.functional.gelu(x).sum(0) + 1,
        lambda x: (torch.nn.functional.silu(x).sum(0) + 1, x.sin()),
        lambda x: torch.nn.functional.silu(x).sum(0) + torch.tensor(1.0),
        lambda x: torch.nn.functional.silu(x).detach().sum(0) + 1,
    ]
    keys = [key_of(program, x) for program in programs]
    assert not any(key.startswith("?") for key in keys)
    assert len(set(keys)) == len(keys)


choose_sines = partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])


def make_row() -> Tensor:
    return torch.randn(4, requires_grad=True)


def test_nested_graphs_are_in_the_key() -> None:
    def branch(x: Tensor, number: int) -> Tensor:
        chosen: Tensor = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * number, (x,))
        return chosen

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
    keys = [
        key_of(plain, torch.randn(*sizes), dynamic=True) for sizes in ((25, 4), (27, 4), (27, 64), (4, 4))
    ]
    assert not any(key.startswith("?") for key in keys)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
