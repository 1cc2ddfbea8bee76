"""GPT-2 as transformers defines it (GPT2LMHeadModel), random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.case import ModelCase, Setting, Size, at, next_token_loss, tokens

VOCABULARY = {Size.REDUCED: 512, Size.FULL: 50257}
# Layers, width, heads.
SHAPES = {Size.SMALL: (2, 128, 2), Size.REDUCED: (2, 256, 4), Size.FULL: (12, 768, 12)}


class GPT2Logits(nn.Module):
    """GPT2LMHeadModel reduced to tokens [b, s] -> logits [b, s, vocabulary]; no key-value cache,
    no dropout.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel  # imported here: the other models do without it

        layers, width, heads = at(SHAPES, size)
        self.model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=at(VOCABULARY, size),
                n_layer=layers,
                n_embd=width,
                n_head=heads,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=None,
                eos_token_id=None,
            )
        )

    def forward(self, token_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=token_ids, use_cache=False).logits
        return logits


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    shape = (2, 64) if setting.size is not Size.FULL else (8, 1024) if setting.large else (1, 256)
    return (tokens(at(VOCABULARY, setting.size), shape, setting, generator),)


CASES = (
    ModelCase(
        name="gpt2",
        build=GPT2Logits,
        inputs=inputs,
        loss=next_token_loss,
        dynamic_dims=((0, 0), (0, 1)),
        note="dropout is off, so that a training step can be compared",
    ),
)
