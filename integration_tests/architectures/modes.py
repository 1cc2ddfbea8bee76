"""Ways to run an architecture of transformers, each a sample for `integration_tests.modules.checks`.

- `training`, `evaluation`: a step in float32, and inference with gradients.
- `autocast`: a training step in which products are in bfloat16.
- `dynamic`: inference with several batches and lengths, compiled for open sizes.
- `decoding`: inference of a text, and of some tokens one by one behind it, with a static cache.
- `written_attention`: a training step whose attention is products and a softmax.
- `flex_attention`: inference whose attention is `torch.nn.attention.flex_attention`.
- `quantised`: inference with linear layers whose weights have 4 and 8 bits, in turn by each scheme of
  `quantised_layers`.
- `exported`: inference from a package, in a process of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn

from integration_tests.architectures.database import BATCH, LENGTH, keywords, sample
from integration_tests.architectures.quantised_layers import quantise_layers
from integration_tests.modules.database import Sample

MODES: Final = (
    "training",
    "evaluation",
    "autocast",
    "dynamic",
    "decoding",
    "written_attention",
    "flex_attention",
    "quantised",
    "exported",
)
# What transformers calls the ways to compute attention; elsewhere it chooses.
ATTENTION: Final = MappingProxyType({"written_attention": "eager", "flex_attention": "flex_attention"})
# Batches and lengths of texts.
SIZES: Final = ((BATCH, LENGTH), (3, 17), (5, 23))
# Tokens one by one.
STEPS: Final = 3


class NotOfferedError(Exception):
    """An architecture has no such mode."""


class Wrapped(nn.Module):
    """A way to call `inner`, whose own conversion to float64 is kept."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def double(self) -> Wrapped:
        self.inner.double()
        return self


class Autocast(Wrapped):
    """Products in bfloat16."""

    def forward(self, **given: Tensor) -> Any:
        device = next(iter(given.values())).device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            return self.inner(**given)


class SeveralCalls(Wrapped):
    """A call after the other, each of which is compiled for itself or finds compiled code."""

    @torch.compiler.disable(recursive=False)
    def forward(self, calls: Sequence[dict[str, Tensor]]) -> list[Any]:
        with torch.no_grad():
            return [self.inner(**given) for given in calls]


class Decoding(Wrapped):
    """Scores of what follows a text, and of what follows each of some tokens behind it."""

    @torch.compiler.disable(recursive=False)
    def forward(self, text: Tensor, tokens: Tensor) -> list[Any]:
        from transformers.cache_utils import StaticCache

        model: Any = self.inner
        cache = StaticCache(config=model.config, max_cache_len=text.shape[1] + tokens.shape[1])
        with torch.no_grad():
            calls = [text, *tokens.split(1, dim=1)]
            return [model(input_ids=given, cache=cache, use_cache=True).logits for given in calls]


def mode_sample(name: str, mode: str) -> Sample:
    """The architecture `name` and one call of it in `mode`.

    Raises:
        NotOfferedError: the architecture cannot be called so.
    """
    made = sample(name, training=mode in ("training", "autocast", "written_attention"))
    architecture: Any = made.module
    model = architecture.model
    if mode in ATTENTION:
        _set_attention(model, ATTENTION[mode])
    arguments: tuple[Any, ...] = ()
    module: nn.Module = architecture
    given: dict[str, Any] = made.keywords
    if mode == "autocast":
        module = Autocast(architecture)
    elif mode == "dynamic":
        module = SeveralCalls(architecture)
        arguments, given = (
            ([keywords(model, batch=batch, length=length) for batch, length in SIZES],),
            {},
        )
    elif mode == "decoding":
        if "cache" not in inspect.signature(model.forward).parameters or "input_ids" not in given:
            raise NotOfferedError(f"{type(model).__name__} has no cache")
        module = Decoding(model)
        tokens = keywords(model, length=STEPS)["input_ids"]
        arguments, given = (given["input_ids"], tokens), {}
    elif mode == "quantised" and not quantise_layers(architecture):
        raise NotOfferedError(f"{type(model).__name__} has no linear layers")
    return Sample(
        name=name,
        number=MODES.index(mode),
        module=module.train(architecture.training),
        arguments=arguments,
        keywords=given,
        differentiable=(),
    )


def _set_attention(model: Any, way: str) -> None:
    """Let `model` and the models inside of it compute attention as transformers says by `way`."""
    try:
        model.set_attn_implementation(way)
    except ValueError as error:
        raise NotOfferedError(str(error)) from error
    # where there is one way only transformers may warn and go on
    configurations = [inner.config for inner in model.modules() if hasattr(inner, "config")]
    if all(config._attn_implementation != way for config in configurations):
        raise NotOfferedError(f"{type(model).__name__} has no {way} attention")
