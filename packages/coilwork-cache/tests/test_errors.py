"""Every error and warning has a code and a remedy, and says them."""

from __future__ import annotations

import builtins
import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence

import pytest

from coilwork_cache import ERRORS, WARNINGS, CacheError, CacheWarning, MissingExtraError
from coilwork_cache.errors import OnceAnnouncer


@pytest.mark.parametrize("problem", [*ERRORS, *WARNINGS])
def test_messages_name_subject_reason_and_remedy(problem: type[CacheError] | type[CacheWarning]) -> None:
    text = str(problem("the subject", "the reason"))
    assert text.startswith(
        f"{problem.__name__}[{problem.code}]: the subject\n  reason  the reason\n  try     "
    )
    assert len(problem.remedy) > 5 and problem.remedy in text
    assert problem.__doc__


def test_lists_are_complete_and_codes_unique_per_list() -> None:
    assert set(ERRORS) == set(CacheError.__subclasses__())
    assert set(WARNINGS) == set(CacheWarning.__subclasses__())
    for classes in (ERRORS, WARNINGS):
        assert len({problem.code for problem in classes}) == len(classes)


def test_once_is_per_class_and_topic() -> None:
    announcer = OnceAnnouncer()
    first, second = WARNINGS[:2]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            announcer.announce(first("a", "b"))
            announcer.announce(first("a", "b"), topic="other")
            announcer.announce(second("a", "b"))
    assert [warning.category for warning in caught] == [first, first, second]


def test_without_redis_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_redis(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        if name.split(".")[0] == "redis":
            raise ModuleNotFoundError("No module named 'redis'")
        return real(name, globals, locals, fromlist or (), level)

    monkeypatch.delitem(sys.modules, "coilwork_cache.redis_store", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_redis)
    with pytest.raises(MissingExtraError, match=r"coilwork-cache\[redis\]"):
        importlib.import_module("coilwork_cache.redis_store")
