"""Entry points are listed without imports, with who brings them, and what cannot be used says why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coilwork_ir.registration import RegistrationError, list_registered

GROUP = "coilwork.test_things"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution of one module that registers `points`."""

    def add(distribution: str, points: dict[str, str], text: str = "THING = 1\n") -> None:
        folder = tmp_path / distribution
        metadata = folder / f"{distribution}-1.2.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        lines = "".join(f"{name} = {place}\n" for name, place in points.items())
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
        (folder / f"{distribution}.py").write_text(text)
        monkeypatch.syspath_prepend(folder)

    return add


def test_packages_values_are_listed_by_name_after_ones_own_and_not_imported(install: Install) -> None:
    install("seconds", {"zebra": "seconds:THING"})
    install("firsts", {"ant": "firsts:THING"}, "THING = 'ant'\n")
    found = list_registered(GROUP, own={"mine": "json:loads"})
    assert [(entry.name, entry.place, entry.origin) for entry in found] == [
        ("mine", "json:loads", ""),
        ("ant", "firsts:THING", "firsts 1.2"),
        ("zebra", "seconds:THING", "seconds 1.2"),
    ]
    assert "firsts" not in sys.modules
    assert found[1].load() == "ant"


def test_an_installed_own_value_is_listed_once_with_its_distribution(install: Install) -> None:
    install("ours", {"mine": "ours:THING"})
    (entry,) = list_registered(GROUP, own={"mine": "ours:THING"})
    assert entry.origin == "ours 1.2"


@pytest.mark.parametrize("own", [{}, {"thing": "json:loads"}])
def test_two_packages_with_one_name_are_refused_by_both_names(install: Install, own: dict[str, str]) -> None:
    install("left", {"thing": "left:THING"})
    if not own:
        install("right", {"thing": "right:THING"})
    with pytest.raises(RegistrationError, match="two packages register 'thing'") as caught:
        list_registered(GROUP, own=own)
    assert "left 1.2" in str(caught.value)
    assert ("json:loads of this source tree" if own else "right 1.2") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"), [("1 / 0\n", "ZeroDivisionError"), ("OTHER = 1\n", "AttributeError")]
)
def test_a_value_that_does_not_load_names_its_distribution(install: Install, text: str, reason: str) -> None:
    name = f"broken_{reason.lower()}"
    install(name, {"thing": f"{name}:THING"}, text)
    (entry,) = list_registered(GROUP, own={})
    with pytest.raises(RegistrationError, match=reason) as caught:
        entry.load()
    assert f"upgrade or uninstall {name} 1.2" in str(caught.value)
