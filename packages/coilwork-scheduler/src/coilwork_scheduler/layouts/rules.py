"""The rules of the layout pass: one table, a row for each kind of node whose cost depends on how memory lies.

A row is added for what the pass should know: a kernel that likes its rows padded, a library that takes
another order for free.
"""

from __future__ import annotations

from typing import Final

from coilwork_scheduler.layouts.attention import weigh_attention
from coilwork_scheduler.layouts.convolutions import (
    weigh_blocked_convolution,
    weigh_convolution,
    weigh_rounded_convolution,
)
from coilwork_scheduler.layouts.products import weigh_product
from coilwork_scheduler.layouts.sites import LayoutRule
from coilwork_scheduler.layouts.traffic import weigh_loop

RULES: Final[tuple[LayoutRule, ...]] = (
    LayoutRule(
        name="loops",
        site=weigh_loop,
        why=(
            "a kernel runs along one range: what does not lie together along it moves by whole sectors of "
            "32 bytes"
        ),
    ),
    LayoutRule(
        name="products",
        site=weigh_product,
        why=(
            "libraries read and write matrices by rows and by columns alike; others are copied first, and "
            "read once more"
        ),
        is_asked=lambda options: options.numerics != "strict",
    ),
    LayoutRule(
        name="convolutions",
        site=weigh_convolution,
        why=(
            "kernels for matrix units compute in channels-last, and convert what lies otherwise around each "
            "call"
        ),
        is_asked=lambda options: options.convolution_layouts and options.numerics != "strict",
    ),
    LayoutRule(
        name="tf32-convolutions",
        site=weigh_rounded_convolution,
        why=(
            "on GPUs, matrix units compute those in `f32` that round their operands, and convert as others do"
        ),
        is_asked=lambda options: (
            options.convolution_layouts and options.tf32_convolutions and options.numerics != "strict"
        ),
    ),
    LayoutRule(
        name="blocked-convolutions",
        site=weigh_blocked_convolution,
        why=(
            "CPUs' libraries compute `f32` in blocks: they convert activations that are not channels-last, "
            "and copy the weights of calls that are"
        ),
        is_asked=lambda options: options.convolution_layouts and options.numerics != "strict",
    ),
    LayoutRule(
        name="attention",
        site=weigh_attention,
        why=(
            "attention kernels take features together, in any order of batch, heads and tokens; some copy a "
            "gradient that lies otherwise than they like"
        ),
        is_asked=lambda options: options.numerics != "strict",
    ),
)


def format_rules(rules: tuple[LayoutRule, ...] = RULES) -> str:
    """The table as text: a line for each rule, with its reason."""
    width = max(len(rule.name) for rule in rules)
    return "".join(f"{rule.name.ljust(width)}  {rule.why}\n" for rule in rules)
