"""Multi-head self-attention over torch's scaled_dot_product_attention, shared by the transformer models."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, one fused projection for queries, keys and values.

    Shapes: x [b, s, width] -> [b, s, width]; mask broadcastable to [b, heads, s, s], True where attention is
    allowed.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        projected = self.projection(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed: Tensor = self.output(attended.transpose(1, 2).reshape(batch, length, width))
        return mixed
