"""Names in the option `fallback` that mean nothing are refused."""

from __future__ import annotations

import pytest

from coilwork.errors import OptionError
from coilwork_frontend.user_options import check_fallback
from coilwork_lowering.registry import RULES


@pytest.mark.parametrize("name", ["aten.cumsum", "aten.sum.dim_IntList", "a_library.loaded_later"])
def test_operators_may_be_named_with_or_without_overload(name: str) -> None:
    check_fallback([name], RULES)


@pytest.mark.parametrize(
    ("name", "help_text"),
    [
        ("aten.cumsm", "did you mean 'aten.cumsum'?"),
        ("cumsum", "did you mean 'aten.cumsum'?"),
        ("aten.sum.along_dim", "did you mean"),
        ("aten.zzzzzzzzz", "as in aten.cumsum or aten.sum.dim_IntList"),
    ],
)
def test_others_are_refused(name: str, help_text: str) -> None:
    with pytest.raises(OptionError, match=f"there is no operator '{name}'") as caught:
        check_fallback(["aten.sin", name], RULES)
    assert caught.value.code == "bad-option" and help_text in str(caught.value)
