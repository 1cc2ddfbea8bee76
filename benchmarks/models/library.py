"""Models as libraries ship them, beside the suite's own: `--models
transformers.roberta,torchvision.densenet121`.

They need transformers or torchvision, and are in no test: what is measured depends on the library's version.
Weights are random; widths and depths are those of `CONFIGURATIONS`, otherwise the library's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.models.case import ModelCase, Setting, Size, normal, tokens

VOCABULARY: Final = 32000
_LAYERS: Final = {
    "num_hidden_layers": 12,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "vocab_size": VOCABULARY,
}
_DECODER: Final = {**_LAYERS, "num_key_value_heads": 4, "intermediate_size": 4096, "head_dim": 64}
# What is said of a model beyond its library's defaults: of large ones a size that fits a benchmark.
CONFIGURATIONS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "albert": {"vocab_size": VOCABULARY, "hidden_size": 1024, "num_attention_heads": 16},
        "bloom": {"n_layer": 12, "hidden_size": 1024, "n_head": 16, "vocab_size": VOCABULARY},
        "deberta-v2": {**_LAYERS, "intermediate_size": 4096, "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"]},
        "deepseek_v3": {
            **_LAYERS, "num_hidden_layers": 6, "intermediate_size": 2048, "moe_intermediate_size": 512,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 384, "kv_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64,
            "v_head_dim": 64,
            "num_key_value_heads": 16,
        },
        "electra": {"vocab_size": VOCABULARY, "hidden_size": 768, "num_attention_heads": 12,
        "intermediate_size": 3072},
        "falcon": {**_LAYERS, "alibi": True},
        "fnet": {"vocab_size": VOCABULARY},
        "gemma2": {**_DECODER, "num_attention_heads": 8, "head_dim": 128},
        "glm4": {**_DECODER, "pad_token_id": 0},
        "gpt_neox": {**_LAYERS, "intermediate_size": 4096},
        "longformer": {"vocab_size": VOCABULARY, "attention_window": 256, "max_position_embeddings": 1026},
        "mamba2": {
            "num_hidden_layers": 6, "hidden_size": 768, "vocab_size": VOCABULARY, "num_heads": 24,
            "head_dim": 64,
            "n_groups": 1,
        },
        "mobilebert": {},
        "modernbert": {"vocab_size": VOCABULARY, "pad_token_id": 0, "reference_compile": False},
        "olmo2": _DECODER,
        "opt": {**_LAYERS, "ffn_dim": 4096, "word_embed_proj_dim": 1024},
        "phi3": {**_DECODER, "pad_token_id": 0},
        "qwen3": _DECODER,
        "roberta": {"vocab_size": VOCABULARY, "max_position_embeddings": 514},
        "rwkv": {"num_hidden_layers": 6, "hidden_size": 512, "vocab_size": VOCABULARY},
        "squeezebert": {"vocab_size": VOCABULARY},
        "xlnet": {"n_layer": 12, "d_model": 1024, "n_head": 16, "d_inner": 4096, "vocab_size": VOCABULARY},
    }
)  # fmt: skip
# Of a model's inputs: (batch, rest of the shape), at the full and at the reduced size.
_TOKENS: Final = ((8, 512), (2, 64))
_IMAGES: Final = ((32, 3, 224, 224), (2, 3, 64, 64))
_SHAPES: Final[Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]] = MappingProxyType(
    {
        "transformers.dac": ((8, 1, 44100), (1, 1, 8820)),
        "transformers.mamba2": ((8, 512), (2, 64)),
        "transformers.rwkv": ((8, 64), (2, 16)),
        "transformers.wav2vec2": ((8, 80000), (2, 8000)),
        "torchvision.inception_v3": ((32, 3, 299, 299), (2, 3, 128, 128)),
        "torchvision.maxvit_t": ((32, 3, 224, 224), (2, 3, 224, 224)),
        "torchvision.r3d_18": ((8, 3, 16, 112, 112), (1, 3, 8, 56, 56)),
        "torchvision.s3d": ((8, 3, 16, 224, 224), (1, 3, 16, 64, 64)),
        "torchvision.deeplabv3_resnet50": ((8, 3, 520, 520), (1, 3, 96, 96)),
        "torchvision.vit_b_16": ((32, 3, 224, 224), (2, 3, 224, 224)),
    }
)


class FirstOutput(nn.Module):
    """A library's model that takes its main input alone and returns the first tensor of its output."""

    def __init__(self, model: nn.Module, argument: str) -> None:
        super().__init__()
        self.model = model
        self.argument = argument

    def forward(self, value: Tensor) -> Tensor:
        found = self.model(**{self.argument: value})
        if not isinstance(found, Tensor):
            found = next(part for part in found.values() if isinstance(part, Tensor))
        first: Tensor = found
        return first


def library_case(name: str) -> ModelCase:
    """The case of `library.model`; ValueError where the library is neither of the two, or has no
    such model.
    """
    library, _, model = name.partition(".")
    build = _BUILDERS.get(library)
    if build is None:
        raise ValueError(f"no model called {name!r}; libraries are {', '.join(_BUILDERS)}")
    return ModelCase(name=name, build=partial(build, model), inputs=partial(_inputs, name), loss=squares)


def squares(output: Tensor, _: tuple[Tensor, ...]) -> Tensor:
    """The mean of the squares, which every output has."""
    return output.float().square().mean()


def _transformers(model: str, size: Size) -> nn.Module:
    library = importlib.import_module("transformers")
    settings: dict[str, Any] = {**CONFIGURATIONS.get(model, {})}
    try:
        config = library.AutoConfig.for_model(model, **settings)
    except ValueError as error:
        raise ValueError(f"transformers has no model called {model!r}") from error
    if size is not Size.FULL and hasattr(config, "num_hidden_layers") and not hasattr(config, "depths"):
        config.num_hidden_layers = min(2, config.num_hidden_layers)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    built = library.AutoModel.from_config(config)
    return FirstOutput(built, built.main_input_name)


def _torchvision(model: str, _: Size) -> nn.Module:
    library = importlib.import_module("torchvision")
    settings: dict[str, Any] = {}
    if model in ("inception_v3", "googlenet"):
        settings = {"aux_logits": False, "init_weights": False}
    elif model.startswith(("deeplabv3", "fcn", "lraspp")):
        settings = {"weights_backbone": None}
    return FirstOutput(library.models.get_model(model, weights=None, **settings), "x")


def _inputs(name: str, setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    library, _, model = name.partition(".")
    words = library == "transformers" and model in CONFIGURATIONS
    full, reduced = _SHAPES.get(name, _TOKENS if words else _IMAGES)
    shape = full if setting.large else reduced
    return (tokens(1000, shape, setting, generator) if words else normal(shape, setting, generator),)


_BUILDERS: Final[Mapping[str, Callable[[str, Size], nn.Module]]] = MappingProxyType(
    {"transformers": _transformers, "torchvision": _torchvision}
)
