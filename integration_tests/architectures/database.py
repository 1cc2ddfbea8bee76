"""Small models with random weights of architectures that transformers defines, as samples for
`integration_tests.modules.checks`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn

from integration_tests.architectures.shrinking import VOCABULARY, reduced, without_chance
from integration_tests.modules.database import Sample

BATCH: Final = 2
LENGTH: Final = 12
# Of an image model whose configuration names no size of images.
IMAGE: Final = 64
# Below this lie tokens that mean something special.
FIRST_TOKEN: Final = 20

_WAVES: Final = {
    "num_feat_extract_layers": 3,
    "conv_dim": [32, 32, 32],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 4, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_PYRAMID: Final = {"hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]}

# What an architecture needs beside reduced numbers.
GIVEN: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1},
        "bit": {"hidden_sizes": [32, 32, 64, 64], "embedding_size": 32, "num_groups": 4},
        "codegen": {"rotary_dim": 8, "n_head": 8},
        "deepseek_v3": {"num_key_value_heads": 4, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
        "esm": {"vocab_size": 40, "pad_token_id": 1, "mask_token_id": 32},
        "funnel": {"block_sizes": [1, 1, 1]},
        "glpn": {**_PYRAMID, "decoder_hidden_size": 16},
        "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
        "gptj": {"rotary_dim": 8},
        "jamba": {
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_dt_rank": 4,
        },
        "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
        "mobilebert": {"embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32},
        "pvt": _PYRAMID,
        "pvt_v2": _PYRAMID,
        "recurrent_gemma": {"num_hidden_layers": 3},
        **dict.fromkeys(("hubert", "sew", "unispeech", "wav2vec2", "wavlm"), _WAVES),
    }
)

NAMES: Final = tuple(
    """
    albert bamba bart beit bert big_bird bit blenderbot bloom canine clip codegen cohere convbert convnext
    convnextv2 ctrl
    data2vec-vision deberta-v2 deepseek_v3 deit dinov2 distilbert dpt electra esm falcon falcon_mamba fnet
    focalnet funnel
    gemma2 gemma3_text glm glpn gpt2 gpt_neo gpt_neox gptj granite hiera hubert ibert jamba jetmoe layoutlm
    led llama
    longformer longt5 m2m_100 mamba mamba2 mixtral mobilebert mobilenet_v1 mobilenet_v2 mobilevit modernbert
    mpt
    nystromformer olmo2 opt pegasus persimmon phi3 poolformer prophetnet pvt pvt_v2 qwen2 qwen2_moe qwen3_moe
    recurrent_gemma regnet resnet roberta roformer rwkv segformer sew siglip squeezebert stablelm starcoder2
    swiftformer
    switch_transformers t5 tapas umt5 unispeech videomae vit vitdet wav2vec2 wavlm whisper xlm xlnet yolos
    """.split()
)


class Architecture(nn.Module):
    """A model of transformers that returns its tensors in a tuple."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Tensor) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.model(**given).to_tuple()
        return found

    def double(self) -> Architecture:
        """The model in f64, its experts one after the other: grouped products are not for that type."""
        if hasattr(self.model, "set_experts_implementation"):
            self.model.set_experts_implementation("eager")
        super().double()
        return self


def sample(name: str, *, training: bool, given: Mapping[str, Any] = MappingProxyType({})) -> Sample:
    """The architecture's model and one call of it; a model that predicts the next token where
    there is one. `given` are arguments of its configuration.
    """
    from transformers.models.auto import modeling_auto as classes

    torch.manual_seed(0)
    config = configuration(name, given)
    mappings = (classes.MODEL_FOR_CAUSAL_LM_MAPPING, classes.MODEL_MAPPING)
    found = next(mapping[type(config)] for mapping in mappings if type(config) in mapping)
    model = (found[0] if isinstance(found, tuple) else found)(config).float()
    return Sample(
        name=name,
        number=0,
        module=Architecture(model).train(training),
        arguments=(),
        keywords=keywords(model),
        differentiable=(),
    )


def configuration(name: str, given: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """A small configuration of the architecture that transformers calls `name`, with `given` in it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = CONFIG_MAPPING[name]
    return without_chance(made(**reduced(made(), {**GIVEN.get(name, {}), **given})))


def keywords(model: Any, *, batch: int = BATCH, length: int = LENGTH) -> dict[str, Tensor]:
    """Random inputs by the names in the signature of `model.forward`; the first text ends earlier than the
    others.
    """
    generator = torch.Generator().manual_seed(length)
    config = model.config

    def tokens(count: int) -> Tensor:
        vocabulary = getattr(config, "vocab_size", VOCABULARY)
        return torch.randint(FIRST_TOKEN, min(vocabulary, VOCABULARY), (batch, count), generator=generator)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator)

    takes = inspect.signature(model.forward).parameters
    main = model.main_input_name
    found: dict[str, Tensor] = {}
    if "input_ids" in takes and main == "input_ids":
        found["input_ids"] = tokens(length)
        if "attention_mask" in takes:
            found["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
            found["attention_mask"][0, length - length // 4 :] = 0
    if "pixel_values" in takes:
        found["pixel_values"] = numbers(*_image(getattr(config, "vision_config", config)))
    if main == "input_values":
        found["input_values"] = numbers(1600 + 160 * length)
    if main == "input_features":
        found["input_features"] = numbers(config.num_mel_bins, 2 * config.max_source_positions)
    if "decoder_input_ids" in takes:
        found["decoder_input_ids"] = tokens(length // 2 + 1)
    return found


def _image(config: Any) -> tuple[int, ...]:
    """The shape of an image, or of the images of a film."""
    size = getattr(config, "image_size", IMAGE)
    height, width = (size, size) if isinstance(size, int) else size
    frames = (config.num_frames,) if hasattr(config, "num_frames") else ()
    return (*frames, config.num_channels, height, width)
