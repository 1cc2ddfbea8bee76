"""Tables of how a kernel runs: orders have reasons, some kernel meets each rule, shapes follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kernel_bench import along, arg
from triton_sample_kernels import SAMPLES

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.mapping import format_mapping, parse_mapping, verify_mapping
from coilwork_ir.passes import PassTable
from coilwork_ir.scalar import find_contraction, load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton.iteration.mapping_parameters import make_mapping_config
from coilwork_triton.iteration.shape_builder import build_shape
from coilwork_triton.kernel_passes.table import KERNEL_PASSES, LEGALIZATION, begin_draft
from coilwork_triton.launch.configs import LAUNCHES
from coilwork_triton.options import TritonOptions
from coilwork_triton.proposals.decisions import PROPOSALS, TILINGS, WALKS, WIDTHS
from coilwork_triton.proposals.mapping_proposal import OPEN_SIZE_REFINEMENTS, REFINEMENTS, propose
from coilwork_triton.proposals.proposal import Proposal, Setting
from coilwork_triton.rule_table import RuleTable

H200, F32 = get_target("sm_90"), DType.F32
SINGLE = [
    name
    for name, kernel in SAMPLES.items()
    if kernel.combined is None and find_contraction(list_kernel_roots(kernel)) is None
]


def setting_of(kernel: Kernel, **options: Any) -> Setting:
    draft = KERNEL_PASSES.run(begin_draft(LEGALIZATION.run(kernel, H200)), H200)
    return Setting(draft=draft, target=H200, options=TritonOptions(**options))


def is_sequential(kernel: Kernel) -> bool:
    """True if rows are walked in pieces, which no batch-invariant launch does."""
    return any(entry.kind == "sequential" for entry in kernel.ranges)


def test_rows_in_pieces_are_refused_where_no_number_of_rows_may_matter() -> None:
    for name in SINGLE:
        if is_sequential(SAMPLES[name]):
            with pytest.raises(EmitError) as caught:
                propose(setting_of(SAMPLES[name], batch_invariant=True))
            assert caught.value.code == "mapping-invariant"


@pytest.mark.parametrize("table", [PROPOSALS, REFINEMENTS, OPEN_SIZE_REFINEMENTS])
def test_the_order_of_decisions_has_reasons(table: PassTable[object, object]) -> None:
    assert table.violations() == ()


def test_a_shape_follows_from_the_kernel_and_the_mapping_alone() -> None:
    for name in SINGLE:
        planned = propose(setting_of(SAMPLES[name]))
        text = format_mapping(planned.mapping)
        assert parse_mapping(text) == planned.mapping
        assert build_shape(planned.setting.kernel, parse_mapping(text), H200) == planned.shape


def test_candidates_are_choices_of_an_open_mapping() -> None:
    for name in SINGLE:
        planned = propose(setting_of(SAMPLES[name]))
        verify_mapping(planned.setting.kernel, planned.mapping)
        for config in planned.configs:
            chosen = {**dict(config.meta), "num_warps": config.num_warps}
            closed = planned.mapping.close(
                {number.name: chosen[number.name] for number in planned.mapping.open_numbers}
            )
            assert make_mapping_config(planned.setting.kernel, closed) == config


def test_each_decision_adds_to_those_before_it() -> None:
    decided: dict[str, set[str]] = {}

    def observe(name: str, before: Proposal, after: Proposal) -> None:
        changed = {f for f in Proposal.__slots__ if getattr(before, f) != getattr(after, f)}
        decided.setdefault(name, set()).update(changed)

    for name in SINGLE:
        PROPOSALS.run(Proposal(), setting_of(SAMPLES[name]), observe=observe)
        if not is_sequential(SAMPLES[name]):
            PROPOSALS.run(Proposal(), setting_of(SAMPLES[name], batch_invariant=True), observe=observe)
    assert set(decided) == set(PROPOSALS.names)
    several = [a & b for one, a in decided.items() for other, b in decided.items() if one < other]
    assert not any(several)


def long_rows() -> Kernel:
    """Rows of whole blocks, each with a weight of its own."""
    row, column = along("x0", 64), along("x1", 4096)
    at = row.symbol * 4096 + column.symbol
    value = op("mul", load("in0", [at], F32), load("in1", [row.symbol], F32))
    return Kernel(
        name="long_rows",
        ranges=(row, column),
        args=(arg("in0", F32, 64 * 4096), arg("in1", F32, 64), arg("out0", F32, 64 * 4096)),
        stores=(Store(buffer="out0", index=at, value=value),),
    )


def pieces_of_columns() -> Kernel:
    """Sums of four pieces of each of 257 columns."""
    piece, column, r = along("x0", 4), along("x1", 257), along("r0", 64, "reduction")
    element = load("in0", [(piece.symbol * 64 + r.symbol) * 257 + column.symbol], F32)
    at = column.symbol * 4 + piece.symbol
    return Kernel(
        name="pieces",
        ranges=(piece, column, r),
        args=(arg("in0", F32, 256 * 257), arg("out0", F32, 4 * 257)),
        stores=(Store(buffer="out0", index=at, value=reduce("sum", [element], [r.symbol])),),
    )


@pytest.mark.parametrize("table", [TILINGS, WALKS, WIDTHS, LAUNCHES])
def test_every_rule_is_the_first_for_some_kernel(
    table: RuleTable[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    first: Callable[..., Any] = RuleTable.first

    def recorded(self: object, question: object) -> object:
        rule = first(self, question)
        if self is table:
            seen.add(rule.name)
        return rule

    monkeypatch.setattr(RuleTable, "first", recorded)
    for kernel in [*map(SAMPLES.__getitem__, SINGLE), long_rows(), pieces_of_columns()]:
        propose(setting_of(kernel))
        if not is_sequential(kernel):
            propose(setting_of(kernel, batch_invariant=True))
    assert {rule.name for rule in table.rules} == seen
    assert all(rule.why in str(table) for rule in table.rules)
