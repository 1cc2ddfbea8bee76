"""What tests of launches share: facts by one list of names, of the kernel's work and of how it runs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from coilwork_triton.facts.kernel_analysis import Work
from coilwork_triton.launch.parameters import Facts

_WORK = frozenset(f.name for f in fields(Work))


def launch_facts(**values: Any) -> Facts:
    """Facts with `values` of both kinds."""
    work = Work(**{name: value for name, value in values.items() if name in _WORK})
    return Facts(work=work, **{name: value for name, value in values.items() if name not in _WORK})


def change_facts(facts: Facts, **values: Any) -> Facts:
    """`facts` with other `values`."""
    work = replace(facts.work, **{name: value for name, value in values.items() if name in _WORK})
    return replace(facts, work=work, **{name: v for name, v in values.items() if name not in _WORK})
