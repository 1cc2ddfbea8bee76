"""Attention written out, in the forms of models, becomes one operator; and computes the same, gradients
included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from lowering_against_eager import find_changed_model
from torch import Tensor, fx

from coilwork_lowering.options import RewriteOptions
from coilwork_lowering.rewrites import CapturedVocabulary, Fired, apply_rewrites, choose_rewrites
from coilwork_lowering.rewrites.attention import FUSION_PAYS

Function = Callable[..., Tensor]
Result = TypeVar("Result")
B, H, L, D = 2, 3, 8, 16
HIDDEN = torch.ones(L, L, dtype=torch.bool).triu(1)
ADDED = torch.zeros(B, 1, L, L).masked_fill(HIDDEN, torch.finfo(torch.float32).min)


class Capture:
    """A back end that rewrites captured graphs and runs them as they are then; those of small scores, too,
    unless `large`.
    """

    def __init__(self, options: RewriteOptions | None = None, *, large: bool = False) -> None:
        self.large = large
        self.options = RewriteOptions() if options is None else options
        self.fired: tuple[Fired, ...] = ()
        self.gm: fx.GraphModule | None = None

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        rewrites = choose_rewrites("captured", self.options)
        if not self.large:
            rewrites = tuple(
                replace(rewrite, conditions=tuple(c for c in rewrite.conditions if c is not FUSION_PAYS))
                for rewrite in rewrites
            )
        self.fired = apply_rewrites(gm, rewrites, vocabulary=CapturedVocabulary())
        gm.graph.lint()
        self.gm = gm
        forward: Callable[..., Any] = gm.forward
        return forward


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), dim=-1) @ v


def hugging_face(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * D**-0.5
    weights = F.softmax(scores + ADDED.to(q.dtype), dim=-1, dtype=torch.float32).to(q.dtype)
    weights = F.dropout(weights, p=0.1, training=False)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def nano_gpt(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(HIDDEN, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def gpt2_of_old(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)).div(D**0.5)
    scores = torch.where(~HIDDEN, scores, -3.0e38)
    return torch.matmul(F.softmax(scores, dim=-1), v)


def t5(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(3, 2))
    bias = torch.arange(H * L * L, dtype=q.dtype).view(1, H, L, L) / 100
    weights = F.softmax((scores + bias + ADDED.to(q.dtype)).float(), dim=-1).type_as(scores)
    return torch.matmul(weights, v)


def whisper(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.bmm((q * 0.25).flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
    return torch.bmm(scores.softmax(-1), v.flatten(0, 1))


FORMS: dict[str, Function] = {
    f.__name__: f for f in (plain, hugging_face, nano_gpt, gpt2_of_old, t5, whisper)
}


def operands(dtype: torch.dtype = torch.float32, **changed: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"q": (B, H, L, D), "k": (B, H, L, D), "v": (B, H, L, D), **changed}
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes.values())


def compiled(
    function: Callable[..., Result], options: RewriteOptions | None = None
) -> tuple[Callable[..., Result], Capture]:
    torch._dynamo.reset()
    capture = Capture(options)
    return torch.compile(function, backend=capture), capture


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_form_of_attention_is_one_call(form: str, dtype: torch.dtype) -> None:
    function, capture = compiled(FORMS[form])
    inputs = operands(dtype)
    with torch.no_grad():
        found, wanted = function(*inputs), FORMS[form](*inputs)
        exact = FORMS[form](*(t.float() for t in inputs)).double()
    assert [item.name for item in capture.fired] == ["attention"]
    if dtype is torch.float32:
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, check_stride=True)
    else:
        # one operator rounds less often than the calls that it stands for
        assert (found.double() - exact).abs().max() <= 1.5 * (wanted.double() - exact).abs().max() + 1e-2


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_attention_has_eagers_gradients(form: str) -> None:
    gradients = []
    function, capture = compiled(FORMS[form])
    for run in (FORMS[form], function):
        leaves = [t.clone().requires_grad_() for t in operands()]
        run(*leaves).pow(2).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert capture.fired and capture.fired[0].count == 1
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


def gemma(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.tanh(torch.matmul(q, k.transpose(2, 3)) * D**-0.5 / 3.0) * 3.0 + ADDED.to(q.dtype)
    weights = F.dropout(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), p=0.0, training=True)
    return torch.matmul(weights, v)


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (2 * ((q @ k.mT) * 0.5).tanh()).masked_fill(HIDDEN, -math.inf).softmax(-1) @ v


def capped_in_batches(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.bmm((torch.bmm(q, k.mT).div(2).tanh() * 2).softmax(-1), v)


@pytest.mark.parametrize("form", [gemma, capped, capped_in_batches])
def test_soft_caps_keep_no_scores_for_gradients(form: Function) -> None:
    """Results and gradients are nearer to the exact ones than eager's."""
    up = torch.randn(B, H, L, D, generator=torch.Generator().manual_seed(2))
    function, capture = compiled(form)
    found = []
    for run, dtype in ((form, torch.float64), (form, torch.bfloat16), (function, torch.bfloat16)):
        leaves = [t.bfloat16().to(dtype).requires_grad_() for t in operands()]
        result = run(*leaves)
        gradients = torch.autograd.grad(result, leaves, up.to(dtype).view(result.shape))
        found.append([t.detach().double() for t in (result, *gradients)])
    assert [item.name for item in capture.fired] == ["capped-attention"]
    exact, eager, ours = found
    for wanted, theirs, own in zip(exact, eager, ours, strict=True):
        assert (own - wanted).norm() <= 1.1 * (theirs - wanted).norm()


def test_soft_caps_stay_written_out_where_nothing_or_a_mask_is_trained() -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return ((q @ k.mT / 2).tanh() * 2 + bias).softmax(-1) @ v

    for trained in (), (0, 3):
        inputs = [t.bfloat16() for t in (*operands(), torch.randn(H, L, L))]
        for k in trained:
            inputs[k].requires_grad_()
        function, capture = compiled(biased)
        function(*inputs)
        assert not capture.fired


def test_a_bias_and_a_mask_become_one_mask() -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return F.softmax(torch.matmul(q, k.transpose(3, 2)) + bias + ADDED, dim=-1) @ v

    inputs = (*operands(), torch.randn(1, H, L, L))
    function, capture = compiled(biased)
    torch.testing.assert_close(function(*inputs), biased(*inputs), rtol=1e-5, atol=1e-5)
    assert capture.fired


@pytest.mark.parametrize("shape", [(), (L,), (1, L), (L, 1), (H, 1, 1), (B, 1, 1, L)])
def test_masks_of_few_dimensions(shape: tuple[int, ...]) -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        added = F.softmax(q @ k.transpose(-2, -1) + bias, -1) @ v
        return added, (q @ k.transpose(-2, -1)).masked_fill(hidden, -math.inf).softmax(-1) @ v

    bias = torch.randn(shape)
    inputs = (*operands(), bias, bias > 0.5)
    function, capture = compiled(biased)
    torch.testing.assert_close(function(*inputs), biased(*inputs), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert [item.count for item in capture.fired] == [2]


def test_finite_masks_keep_rows_of_equal_weights() -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)).masked_fill(mask, torch.finfo(torch.float32).min)
        return scores.softmax(-1) @ v

    inputs = (*operands(), torch.ones(L, L, dtype=torch.bool))
    function, capture = compiled(masked)
    torch.testing.assert_close(function(*inputs), masked(*inputs), rtol=1e-5, atol=1e-5)
    assert capture.fired


def filled(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).masked_fill(hidden, float("-inf")).softmax(-1) @ v


def chosen_where_seen(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    return torch.where(hidden.logical_not(), q @ k.transpose(-2, -1), float("-inf")).softmax(-1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, float("-inf"))
    return ((q @ k.transpose(-2, -1)) * 0.5 + mask).softmax(-1) @ v


def added_in_batches(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    mask = torch.zeros(hidden.shape[1:], dtype=q.dtype).masked_fill(hidden[1], float("-inf"))
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)) + mask
    return torch.bmm(scores.softmax(-1), v.flatten(0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(L, L), (1, L)], ids=["rows of their own", "one row for all"])
@pytest.mark.parametrize("function", [filled, chosen_where_seen, added, added_in_batches])
def test_rows_that_see_nothing_are_nan(
    function: Function, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """As in eager; one operator alone would make zeros of them. So are all gradients with respect to the
    values, in eager.

    Those of queries and keys `masked_fill` makes zeros of in eager.
    """
    hidden = (torch.arange(B * shape[0] * L) % 3 == 0).view(B, 1, *shape)
    hidden[1, :, -1] = True
    gradients = []
    run, capture = compiled(function)
    for one in (function, run):
        leaves = [t.clone().requires_grad_() for t in operands(dtype)]
        result = one(*leaves, hidden)
        result.sum().backward()
        gradients.append([result, *(leaf.grad for leaf in leaves)])
    assert capture.fired
    first = gradients[0][0]
    assert first is not None and first.isnan().any()
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 4e-2}[dtype]
    if function in (filled, chosen_where_seen):
        gradients = [[result, values] for result, _, _, values in gradients]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=tolerance, atol=tolerance, equal_nan=True)


def test_sources_of_what_was_replaced_are_kept() -> None:
    function, capture = compiled(plain)
    function(*operands())
    (fired,) = capture.fired
    line = plain.__code__.co_firstlineno + 1
    assert fired.sources == (f"{__file__}:{line}",)
    assert capture.gm is not None
    (node,) = (n for n in capture.gm.graph.nodes if n.target is F.scaled_dot_product_attention)
    assert f"line {line}" in node.meta["stack_trace"]


def weights_are_returned(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
    return weights @ v, weights


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), dim=-2) @ v


def mask_is_mild(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).masked_fill(HIDDEN, -10.0).softmax(-1) @ v


def mask_enlarges(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q[:1] @ k[:1].transpose(-2, -1)) + ADDED).softmax(-1) @ v


def written_between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
    q.add_(1)
    return weights @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k[:, :1].transpose(-2, -1), dim=-1) @ v


def scaled_by_a_tensor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * q.mean(), dim=-1) @ v


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(torch.softmax(q @ k.transpose(-2, -1), dim=-1), 0.5, True) @ v


REFUSED = (
    weights_are_returned,
    over_queries,
    mask_is_mild,
    mask_enlarges,
    written_between,
    grouped,
    scaled_by_a_tensor,
    dropped,
)


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_is_no_attention_stays(function: Function) -> None:
    run, capture = compiled(function)
    run(*operands())
    assert capture.gm is not None and capture.fired == ()


@pytest.mark.parametrize("numerics", ["eager", "strict"])
def test_fast_numerics_alone(numerics: Any) -> None:
    run, capture = compiled(plain, RewriteOptions(numerics=numerics))
    run(*operands())
    assert capture.fired == ()


def test_dropout_where_numbers_need_not_be_those_of_eager() -> None:
    run, capture = compiled(dropped, RewriteOptions(random=True))
    torch.manual_seed(0)
    q, k, _ = operands()
    found = run(q, k, torch.ones(B, H, L, D))
    assert [item.name for item in capture.fired] == ["attention-with-dropout"]
    # of weights that sum to one, what is left counts double
    assert abs(found.mean().item() - 1) < 0.2 and found.var() > 0


def test_double_precision_is_left_alone() -> None:
    run, capture = compiled(plain)
    run(*operands(torch.float64))
    assert capture.fired == ()


def test_unknown_sizes_add_no_guard() -> None:
    torch._dynamo.reset()
    capture = Capture()
    run = torch.compile(plain, backend=capture, dynamic=True)
    for length in (5, 9, 12):
        inputs = operands(q=(B, H, length, D), k=(B, H, length, D), v=(B, H, length, D))
        torch.testing.assert_close(run(*inputs), plain(*inputs), rtol=1e-5, atol=1e-5)
    assert capture.fired


@pytest.mark.parametrize(
    ("length", "trained", "fits"), [(500, False, False), (600, False, True), (600, True, False)]
)
def test_on_cpus_scores_must_be_large(length: int, trained: bool, fits: bool) -> None:
    torch._dynamo.reset()
    capture = Capture(large=True)
    q, k, v = operands(q=(B, H, length, D), k=(B, H, length, D), v=(B, H, length, D))
    torch.compile(plain, backend=capture)(q.requires_grad_(trained), k, v)
    assert bool(capture.fired) is fits


def test_the_device_says_from_which_size_on_a_call_pays() -> None:
    q, k, v = (torch.randn(B, H, L, D) for _ in range(3))
    scores = B * H * L * L * 4
    for least, fired in ((scores, 1), (scores + 1, 0)):
        torch._dynamo.reset()
        find_model = find_changed_model(libraries__attention_bytes=least)
        capture = Capture(RewriteOptions(find_model=find_model), large=True)
        torch.compile(plain, backend=capture)(q, k, v)
        assert len(capture.fired) == fired
