"""Mappings that a user gives: written as they say, or refused by the directive's name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cpp_fixtures import BuildSource

from coilwork_cpp import CppCodegen
from coilwork_ir.conformance import CASES
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.target import Target, get_target

AVX2 = get_target("x86-64-avx2")
CODEGEN = CppCodegen()
# of 6 rows of 200
OPEN = next(case.text for case in CASES if case.name == "softmax")
SOFTMAX = parse_kernel(OPEN.replace("size n0 in [0, inf]\n", "").replace("n0", "200"))
BY_HAND = """functions exact
threads over x0
grain 1 at 1
accumulators 16 pass 0
accumulators 32 pass 1
save t3 pass 1"""


def emitted(kernel: Kernel, text: str, *, name: str = "", where: Target = AVX2, **options: object) -> str:
    given = {name or kernel.name: text}
    return CODEGEN.emit(kernel, where, {"mappings": given, **options}).text


def test_what_a_trace_shows_gives_the_same_text() -> None:
    pieces = 0
    for case in CASES:
        kernel = parse_kernel(case.text)
        try:
            shown = CODEGEN.describe(kernel, AVX2, {})
        except EmitError:
            continue
        pieces = max(pieces, shown.count("mapping @"))
        assert emitted(kernel, shown) == CODEGEN.emit(kernel, AVX2, {}).text, case.name
    # of what is written in pieces each has its own
    assert pieces > 1


def test_a_kernel_runs_as_it_is_told(build_source: BuildSource, machine: Target) -> None:
    x = torch.randn(6, 200)
    for text in (BY_HAND, BY_HAND.replace("\nsave t3 pass 1", ""), "sequential x0 threads"):
        source = CODEGEN.emit(SOFTMAX, machine, {"mappings": {"soft*": text}})
        assert source.text != CODEGEN.emit(SOFTMAX, machine, {}).text
        got = torch.empty_like(x)
        build_source(source)(x, got)
        torch.testing.assert_close(got, x.softmax(-1))
    shown = CODEGEN.describe(SOFTMAX, machine, {"mappings": {"softmax": BY_HAND}})
    assert "accumulators 32 pass 1" in shown and "functions exact" in shown


def test_a_name_goes_before_patterns_and_earlier_patterns_before_later_ones() -> None:
    one, two = BY_HAND, BY_HAND.replace("16 pass 0", "32 pass 0")
    plain = CODEGEN.emit(SOFTMAX, AVX2, {}).text
    assert emitted(SOFTMAX, one, name="other_*") == plain

    def text(*given: tuple[str, str]) -> str:
        return CODEGEN.emit(SOFTMAX, AVX2, {"mappings": given}).text

    assert text(("*", two), ("softmax", one)) == text(("softmax", one)) != text(("softmax", two))
    assert text(("s*", two), ("*", one)) == text(("softmax", two))


def test_a_mapping_for_another_kind_of_device_is_not_this_ones() -> None:
    gpu = "mapping @softmax for cuda {\n  otherwise:\n    tile x0 by 1\n    keep r0 by 256\n    warps 1\n}\n"
    plain = CODEGEN.emit(SOFTMAX, AVX2, {}).text
    assert emitted(SOFTMAX, gpu) == plain
    both = gpu + CODEGEN.describe(SOFTMAX, AVX2, {"mappings": {"softmax": BY_HAND}})
    assert emitted(SOFTMAX, both) == emitted(SOFTMAX, BY_HAND) != plain


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("threads over r0", "mapping-threads", "r0 is a reduction range"),
        ("threads over x0 accumulators 48 pass 0", "mapping-accumulators", "no power of two"),
        ("threads over x0 accumulators 16 pass 7", "mapping-accumulators", "none with number 7"),
        ("threads over x0 save t77 pass 1", "mapping-save", "no value t77"),
        ("tile x0 by 4", "mapping-tile", "no C\\+\\+ is written"),
        ("threads over x0 grain 65536 at 1 hover x0", "mapping-text", "hover"),
        ("nest store 0: threads nest store 0: threads", "mapping", "stores \\[0, 0\\]"),
        ("mapping @softmax for cpu {\n otherwise:\n threads over x0 warps\n}", "mapping-text", "line 4"),
        (
            "mapping @a for cpu { otherwise: threads }\nmapping @a for cpu { otherwise: threads }",
            "mapping",
            "2 mappings",
        ),
    ],
)
def test_what_is_not_legal_is_refused_by_its_name(text: str, code: str, reason: str) -> None:
    with pytest.raises(EmitError, match=reason) as caught:
        emitted(SOFTMAX, text)
    assert caught.value.code == code and "softmax" in caught.value.what
    assert caught.value.remedy


def test_an_open_mapping_is_to_be_closed_first() -> None:
    with pytest.raises(EmitError, match=r"leaves \?warps open") as caught:
        emitted(SOFTMAX, "threads over x0 warps ?warps in 4 8")
    assert caught.value.remedy == "choose one of 4, 8"


def test_what_is_promised_stays_promised() -> None:
    eager = replace(SOFTMAX, numerics="eager")
    for code, emit in (
        (
            "mapping-functions",
            lambda: emitted(SOFTMAX, "functions vector threads over x0", vector_math=False),
        ),
        ("mapping-contract", lambda: emitted(eager, "contract threads over x0")),
        ("mapping-invariant", lambda: emitted(SOFTMAX, "threads over x0", batch_invariant=True)),
    ):
        with pytest.raises(EmitError) as caught:
            emit()
        assert caught.value.code == code
    shown = CODEGEN.describe(SOFTMAX, AVX2, {"batch_invariant": True})
    assert "invariant" in shown and emitted(SOFTMAX, shown, batch_invariant=True)


@pytest.mark.parametrize("value", ["softmax", {"softmax": 3}, [("a", "b", "c")], 7])
def test_the_option_is_texts_by_names(value: object) -> None:
    with pytest.raises(EmitError, match="mappings are texts by names") as caught:
        CODEGEN.emit(SOFTMAX, AVX2, {"mappings": value})
    assert caught.value.code == "option-value"
