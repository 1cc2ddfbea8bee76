"""Configurations of transformers, reduced until a model of them is made and compiled in seconds.

Every integer of a configuration whose name says what it counts is reduced to what `LIMITS` allows; dropout
becomes zero, so that training is reproducible. What must fit together otherwise stands in
`integration_tests.architectures.database`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

VOCABULARY: Final = 99
# Stages of an image model get wider by multiples of this.
WIDTH_STEP: Final = 16

# Names of integers, and the largest that each may be; the first pattern that a name matches counts.
LIMITS: Final = tuple(
    (re.compile(rf"(.*_)?({names})"), limit)
    for names, limit in (
        ("vocab_size|n_vocab", VOCABULARY),
        ("max_position_embeddings|n_positions|n_ctx|max_seq_len|max_source_positions", 128),
        ("intermediate_size|ffn_dim|d_ff|n_inner|mlp_dim|ffn_hidden_size|mlp_hidden_size", 64),
        ("num_key_value_heads|n_head_kv|num_kv_heads|kv_n_heads", 2),
        ("num_attention_heads|num_heads|n_heads?|attention_heads|num_encoder_attention_heads", 4),
        ("head_dim|d_kv|head_size|v_head_dim|d_head|qk_nope_head_dim|qk_rope_head_dim|kv_lora_rank", 16),
        ("num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|depth|[lxr]_layers", 2),
        ("hidden_size|d_model|n_embd|embed_dim|embedding_size|projection_dim|hidden_dim|lru_width", 64),
        ("d_latents|dim|width|hidden_channels|num_latents", 64),
        ("num_experts|num_local_experts|n_routed_experts", 4),
        ("num_experts_per_tok|moe_k", 2),
        ("q_lora_rank|image_size|img_size", 32),
        ("num_mel_bins", 16),
        ("sliding_window|attention_window_size|patch_size", 8),
        ("num_frames", 4),
    )
)
_WIDTHS: Final = re.compile(r".*(hidden_sizes|embed_dims?|conv_dim|channels|dims)")
_DEPTHS: Final = re.compile(r".*(depths?|num_blocks|layer_repeats)")
# Follow from the numbers of layers, as long as they are not given.
_DERIVED: Final = ("layer_types", "mlp_layer_types", "layers_block_type")


def reduced(config: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that make a small configuration of the class of `config`, those in `given` among them.

    Configurations inside of it are reduced, too; `given` holds a mapping for those.
    """
    found: dict[str, Any] = {}
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            found[name] = {"model_type": value.model_type, **reduced(value, given.get(name, {}))}
        elif name not in _DERIVED and not name.startswith("_"):
            small = _reduced(name, value)
            if small != value:
                found[name] = small
    return {
        **found,
        **{name: value for name, value in given.items() if name not in found or type(value) is not dict},
    }


def _reduced(name: str, value: Any) -> Any:
    if type(value) is int:
        if name.endswith(("token_id", "token_index")):
            return value if value < VOCABULARY else 10 + value % 7
        limits = (limit for pattern, limit in LIMITS if pattern.fullmatch(name))
        return min(value, next(limits, value))
    if isinstance(value, (list, tuple)) and value and all(type(one) is int for one in value):
        if _WIDTHS.fullmatch(name):
            return [max(WIDTH_STEP, 64 * one // max(value) // WIDTH_STEP * WIDTH_STEP) for one in value]
        if _DEPTHS.fullmatch(name):
            return [1 for _ in value]
    return value


def without_chance(config: Any) -> Any:
    """`config`, changed in place: no dropout, no masks at random, no cache."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            without_chance(value)
        elif type(value) is float and re.search("drop|mask_time_prob|mask_feature_prob|jitter", name):
            setattr(config, name, 0.0)
        elif name == "use_cache":
            config.use_cache = False
    return config
