"""What `batch_invariant` asks of other options, and which calls it takes."""

from __future__ import annotations

import pytest

from coilwork.backend import resolve
from coilwork.errors import BatchVariantError, OptionError
from coilwork_ir.loc import Origin
from coilwork_ir.program.nodes import ExternCall, Program
from coilwork_tools.check_mode.watch import check_batch_invariant


def calling(target: str) -> Program:
    origin = Origin(node="n", op=target, file="model.py", line=7)
    return Program(name="p", inputs=(), instructions=(ExternCall(target=target, args=(), origins=(origin,)),))


def test_it_brings_the_options_it_needs() -> None:
    found = resolve(options={"batch_invariant": True}, environ={})
    assert (found.numerics, found.contractions, found.conv_layout) == ("eager", "generated", "captured")
    strict = resolve(options={"batch_invariant": True, "numerics": "strict"}, environ={})
    assert strict.numerics == "strict"
    assert resolve(options={}, environ={}).numerics == "fast"
    assert found.key_text() != resolve(options={"numerics": "eager"}, environ={}).key_text()


@pytest.mark.parametrize(
    ("name", "value"), [("numerics", "fast"), ("contractions", "aten"), ("conv_layout", "channels_last")]
)
def test_what_contradicts_it_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        resolve(options={"batch_invariant": True, name: value}, environ={})


def test_calls_that_move_elements_pass_and_others_do_not() -> None:
    check_batch_invariant(calling("aten.sort.stable"))
    for target in ("aten.mm.default", "custom.sort.default"):
        with pytest.raises(BatchVariantError, match=rf"{target}[\s\S]*model\.py:7"):
            check_batch_invariant(calling(target))
