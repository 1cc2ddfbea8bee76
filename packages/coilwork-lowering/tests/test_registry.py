"""The table of rules."""

from __future__ import annotations

import re

import torch

from coilwork_lowering.registry import RULES


def test_every_rule_is_for_an_overload_by_its_full_name() -> None:
    assert [name for name in RULES if not re.fullmatch(r"[a-z_]+\.\w+\.\w+", name)] == []


def test_rules_are_for_operators_that_exist() -> None:
    # prims.fma is newer than the oldest torch that is supported; the tables are the same for all
    newer = {"prims.fma.default"}
    missing = []
    for name in set(RULES) - newer:
        namespace, operator, overload = name.split(".")
        packet = getattr(getattr(torch.ops, namespace), operator, None)
        if packet is None or overload not in packet.overloads():
            missing.append(name)
    assert missing == []
