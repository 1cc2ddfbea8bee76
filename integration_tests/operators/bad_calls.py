"""Calls that eager refuses, through the compiler: they must be refused there too, with eager's type of error.

    python -m integration_tests.operators.bad_calls --processes 2
    python -m integration_tests.operators.bad_calls --only "nn.functional.embedding*" --ways bad,bad_dynamic
    python -m integration_tests.operators.bad_calls --ways bad_lowered

The calls are made of good ones by `mutations.py`: of every operator in torch's database, of its modules, and
of every operator of ATen's that they reach (`aten.*`). Others stand in tables (`kind.*`, see `kinds`). Worker
processes survive what a call does. A refused call must raise, with and without `strict`, the type of error
that eager raises, or that torch raises when it traces the call (`aot_eager`). What returns a result, raises
something else or falls back with a warning is a finding.

`bad_amid` computes what the call is given, and with what it returns: see `amid.py`. What tracing refuses is
not tried so. `bad_dynamic` compiles for open sizes. `bad_reused` does so too, for a good call, whose code the
bad calls then get to: if its guards let them. `bad_guarded` tries only those that the guards let through,
which takes a tenth of the time. `bad_training` takes gradients of the results. `bad_lowered` only traces and
lowers: see `screening.py`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

import torch

from coilwork.backend import backend as coilwork_backend
from coilwork.errors import CoilworkFallbackWarning
from integration_tests.operators.amid import compute_around, is_refused_by_tracing
from integration_tests.operators.checks import Counted, Outcome
from integration_tests.operators.children import run_in_child
from integration_tests.operators.database import Sample, tensors_of
from integration_tests.operators.exceptions import refusal_reason
from integration_tests.operators.kinds import KINDS
from integration_tests.operators.mutations import mutated
from integration_tests.operators.parts import Part
from integration_tests.operators.pool import Settings, run
from integration_tests.operators.screening import screened
from integration_tests.operators.subjects import Subject, subject_of, subjects
from integration_tests.operators.sweep import read_progress
from integration_tests.operators.units import Unit, chosen_names

BAD_WAYS: Final = (
    "bad",
    "bad_amid",
    "bad_dynamic",
    "bad_reused",
    "bad_guarded",
    "bad_training",
    "bad_lowered",
)
# Those that compile the good call, for all bad ones that are made of it.
_REUSING: Final = ("bad_reused", "bad_guarded")
SEED: Final = 1234

_MOST_FINDINGS: Final = 12
# Seconds that eager may take for a call, and memory.
_LIMIT_S: Final = 5
_LIMIT_ON_ACCELERATORS_S: Final = 60
_MOST_BYTES: Final = 1 << 34
_TOO_LARGE: Final = "can't allocate memory"
# What every later call raises, too.
_STOPS_ITS_DEVICE: Final = "device-side assert"
# What torch says of every gradient in a fork of a process that has taken gradients itself.
_IS_OF_A_FORK: Final = "Autograd-and-Fork"
# What it says where guards fail, and nothing may be compiled.
_WANTS_CODE: Final = "fail_on_recompile"
# A name's good call is compiled once for all bad ones, each of which may ask for code of its own.
_MOST_CODES: Final = MappingProxyType({"recompile_limit": 10_000, "accumulated_recompile_limit": 10_000})
_DIGITS: Final = re.compile(r"0x[0-9a-f]+|-?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a call came to: the error's type, as one reads it, and text; `graphs` that were compiled, and
    warnings on the way.

    `is_dynamos`: Dynamo raises it, before a compiler has been asked.
    """

    kind: str | None
    text: str = ""
    graphs: int = 0
    is_dynamos: bool = False
    fallbacks: tuple[str, ...] = ()


_BadCall: TypeAlias = tuple[Callable[..., Any], Sample, str, Sample, Refusal]


def check_bad_calls(
    name: str,
    *,
    device: str,
    way: str,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """One outcome per finding, or one for all calls that were refused as they have to be."""
    calls = bad_calls(name, device, training=way == "bad_training")
    if way == "bad_training":
        made = list(calls)
        return run_in_child(partial(_check_calls, name, made, way, tell))
    return _check_calls(name, calls, way, tell)


def _check_calls(
    name: str, calls: Iterable[_BadCall], way: str, tell: Callable[[str], None]
) -> list[Outcome]:
    found: list[Outcome] = []
    refused = 0
    reused: _Reused | None = None
    for function, good, what, sample, wanted in calls:
        tell(f"{what}: {sample.describe()}")
        refused += 1
        if way == "bad_lowered":
            status, detail = _screened(function, what, sample)
        elif way in _REUSING and good is sample:
            refused -= 1
            continue
        elif way in _REUSING:
            if reused is None or reused.good is not good:
                reused = _Reused(function, good)
            if way == "bad_guarded" and not reused.lets_through(sample):
                refused -= 1
                continue
            status, detail = reused.judge(sample, wanted)
        elif way == "bad_amid":
            status, detail = _judged_amid(function, sample, wanted)
        else:
            dynamic, training = way == "bad_dynamic", way == "bad_training"
            status, detail = judge_call(function, sample, wanted, dynamic=dynamic, training=training)
        if status != "ok":
            text = f"{detail}  eager: {wanted.kind}: {wanted.text[:200]}"
            found.append(
                Outcome(
                    op=name,
                    way=way,
                    dtype="",
                    status=status,
                    detail=text,
                    sample=f"{what}: {sample.describe()}",
                    samples=1,
                )
            )
            if sum(one.status != "torch" for one in found) >= _MOST_FINDINGS:
                break
    status = "ok" if refused else "skipped"
    return [*found, Outcome(op=name, way=way, dtype="", status=status, samples=refused - len(found))]


def bad_calls(name: str, device: str, *, training: bool = False) -> Iterator[_BadCall]:
    """Calls of what `name` means that eager refuses: the good call, what was changed, and eager's error.

    One per argument and text of an error, without those of `exceptions.KNOWN_REFUSALS`. A call of a table is
    its own good call where there is no other.
    """
    if name in KINDS:
        yield from _calls_of_kind(name, training=training)
        return
    seen: set[tuple[str, str]] = set()
    for subject in subject_of(name, device):
        for good in subject.samples:
            tried = list(mutated(good, outputs=_outputs(subject, good)))
            for (what, sample), refusal in zip(
                tried, ask_eager(subject.function, [one for _, one in tried], training=training)
            ):
                key = (what.partition(":")[0], _DIGITS.sub("#", f"{refusal.kind} {refusal.text}")[:160])
                if _IS_OF_A_FORK in refusal.text:
                    raise RuntimeError("gradients were taken in the process that asks eager for some")
                if refusal_reason(name, what, refusal.text) is not None or _TOO_LARGE in refusal.text:
                    continue
                if refusal.kind is not None and key not in seen:
                    seen.add(key)
                    yield subject.function, good, what, sample, refusal


def _calls_of_kind(name: str, *, training: bool) -> Iterator[_BadCall]:
    """The calls of a table that eager refuses; gradients are taken of those that are made for it only."""
    chosen = [(what, call) for what, call in KINDS[name].items() if call.training is training]

    def nth(position: int, *given: Any) -> Any:
        return chosen[position][1].function(*given)

    asked = [_sample(position, *call.given) for position, (_, call) in enumerate(chosen)]
    for (what, call), refusal in zip(chosen, ask_eager(nth, asked, training=training)):
        if refusal.kind is not None and refusal_reason(name, what, refusal.text) is None:
            sample = _sample(*call.given)
            good = sample if call.good is None else _sample(*call.good)
            yield call.function, good, what, sample, refusal


def _sample(*given: Any) -> Sample:
    return Sample(arguments=given, keywords={})


def judge_reuse(
    function: Callable[..., Any], good: Sample, sample: Sample, wanted: Refusal
) -> tuple[str, str]:
    """Status and detail of a call that eager refuses with `wanted`, made of what `good` had compiled."""
    return _Reused(function, good).judge(sample, wanted)


def judged_program(function: Callable[..., Any], given: Sequence[torch.Tensor], *, dynamic: bool) -> str:
    """What is wrong with what becomes of a call that eager has to refuse; nothing where it is refused as
    eager does.
    """
    sample = _sample(*given)
    (wanted,) = ask_eager(function, [sample])
    if wanted.kind is None:
        return "eager takes it"
    status, detail = judge_call(function, sample, wanted, dynamic=dynamic)
    return "" if status == "ok" else f"{status}: {detail}, eager: {wanted.kind}"


def _outputs(subject: Subject, sample: Sample) -> tuple[torch.Tensor, ...]:
    """What a good call returns, if it can be told where to."""
    if not subject.takes_out:
        return ()
    arguments, keywords = sample.fresh()
    try:
        results = subject.function(*arguments, **keywords)
    except Exception:  # noqa: BLE001  then there is nothing to write to
        return ()
    return tuple(tensors_of(results))


def ask_eager(
    function: Callable[..., Any],
    given: Sequence[Sample],
    *,
    training: bool = False,
    on_accelerator: bool = False,
) -> list[Refusal]:
    """What eager says of each call. A call that takes its process down, as some do, counts as one that is
    accepted, and so does one that an accelerator's kernel stops at an assertion.

    That is why they are made in a process of their own; there is another one after each crash.
    """
    found: list[Refusal] = []
    while len(found) < len(given):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _tell_refusals(
                function, given[len(found) :], writing, training=training, on_accelerator=on_accelerator
            )
        os.close(writing)
        with os.fdopen(reading) as answers:
            for line in answers:
                kind, text = json.loads(line)
                found.append(Refusal(kind=kind, text=text))
        _, status = os.waitpid(child, 0)
        if status != 0:
            found.append(Refusal(kind=None, text="eager's process dies"))
    return found


def _tell_refusals(
    function: Callable[..., Any],
    given: Sequence[Sample],
    writing: int,
    *,
    training: bool,
    on_accelerator: bool,
) -> NoReturn:
    """In the child: a line for each call as it is done.

    OpenMP's threads don't come along with a fork: a parallel region of a child waits for them forever. So one
    thread has to do. The alarm ends the child even where a test runner has put a handler of its own, which no
    call into C++ lets run. What kills the child is an answer, of which the runner's log need not tell.
    """
    torch.set_num_threads(1)
    faulthandler.disable()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    if not on_accelerator:  # whose drivers reserve more addresses than that
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    with os.fdopen(writing, "w", buffering=1) as answers:
        for sample in given:
            signal.alarm(_LIMIT_ON_ACCELERATORS_S if on_accelerator else _LIMIT_S)
            refusal = _refusal(function, sample, training=training)
            if on_accelerator and _STOPS_ITS_DEVICE in refusal.text:
                os._exit(1)
            answers.write(json.dumps([refusal.kind, refusal.text]) + "\n")
    os._exit(0)


def _screened(function: Callable[..., Any], what: str, sample: Sample) -> tuple[str, str]:
    if what.startswith("out:"):
        # in-place and out variants are for AOTAutograd to make functional
        return "ok", ""
    status, detail = screened(function, sample)
    return ("ok" if status in ("refused", "left", "checked") else status), detail


def judge_call(
    function: Callable[..., Any], sample: Sample, wanted: Refusal, *, dynamic: bool, training: bool = False
) -> tuple[str, str]:
    """Status and detail of a call that eager refuses with `wanted`."""
    ours = partial(_traced, function, sample, dynamic=dynamic, training=training)
    strict = ours(_ours(strict=True))
    if strict.kind is not None and (not strict.graphs or strict.is_dynamos):
        return "ok", ""
    if strict.kind == wanted.kind and not strict.fallbacks:
        return "ok", ""
    return _compared(wanted, strict, ours(_ours(strict=False)), ours(_aot_eager()))


def _judged_amid(function: Callable[..., Any], sample: Sample, wanted: Refusal) -> tuple[str, str]:
    """Status and detail of a call, amid others, that eager refuses."""
    around = compute_around(function)
    if is_refused_by_tracing(around, sample):
        return "ok", ""
    return judge_call(around, sample, wanted, dynamic=False)


class _Reused:
    """A function that was compiled for open sizes, for the `good` call, and is then given bad ones."""

    def __init__(self, function: Callable[..., Any], good: Sample) -> None:
        self._function = function
        self.good = good
        torch._dynamo.reset()
        self._strict, _ = self._compiled(_ours(strict=True))

    def lets_through(self, sample: Sample) -> bool:
        """Tell whether the guards of the good call's code accept `sample`."""
        with torch.compiler.set_stance("fail_on_recompile"):
            return _WANTS_CODE not in _watched(self._strict, sample).text

    def judge(self, sample: Sample, wanted: Refusal) -> tuple[str, str]:
        """Status and detail of a call that eager refuses."""
        strict = _watched(self._strict, sample)
        if (
            strict.kind is not None
            and not strict.fallbacks
            and (strict.kind == wanted.kind or strict.is_dynamos)
        ):
            return "ok", ""
        torch._dynamo.reset()
        aot_eager, of_good = self._compiled(_aot_eager())
        theirs = _watched(aot_eager, sample)
        without, _ = self._compiled(_ours(strict=False))
        default = _watched(without, sample)
        torch._dynamo.reset()
        self._strict, _ = self._compiled(_ours(strict=True))
        if of_good.kind is not None and strict.kind is not None:
            return "torch", f"tracing refuses the good call, too: {of_good.kind}: {of_good.text[:200]}"
        return _compared(wanted, strict, default, theirs)

    def _compiled(self, backend: Callable[..., Any]) -> tuple[Callable[..., Any], Refusal]:
        """The function as `backend` compiles it, and what became of the good call."""
        compiled = _callable(self._function, backend, dynamic=True)
        return compiled, _watched(compiled, self.good)


def _compared(wanted: Refusal, strict: Refusal, default: Refusal, theirs: Refusal) -> tuple[str, str]:
    """Status and detail of what becomes of a call with `strict` and without, beside what becomes of it in
    eager and `aot_eager`.
    """
    for mode, ours in (("strict", strict), ("default", default)):
        told = f"{mode}: {ours.kind or 'a result'}: {ours.text[:400]} {' '.join(ours.fallbacks)[:300]}"
        if ours.kind is None:
            return ("torch" if theirs.kind is None else "accepted"), told
        if ours.kind not in (wanted.kind, theirs.kind) and not ours.is_dynamos:
            return "error", told
        if ours.fallbacks:
            return "fallback", told
    return "ok", ""


def _refusal(function: Callable[..., Any], sample: Sample, *, training: bool = False) -> Refusal:
    arguments, keywords = sample.fresh()
    torch.manual_seed(SEED)
    try:
        if training:
            _call_with_gradients(function, arguments, keywords)
        else:
            function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001  any error is a refusal
        dynamos = type(error).__module__.startswith("torch._dynamo") and not hasattr(error, "inner_exception")
        return Refusal(kind=_kind(error), text=str(error), is_dynamos=dynamos)
    return Refusal(kind=None)


def _call_with_gradients(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """Call with operands that require gradients, as many as can, and take those of all results."""
    for given in tensors_of((arguments, keywords)):
        if given.dtype.is_floating_point or given.dtype.is_complex:
            given.requires_grad_()
    results = [one for one in tensors_of(function(*arguments, **keywords)) if one.requires_grad]
    if results:
        torch.autograd.backward(results, [torch.ones_like(one) for one in results])


def _kind(error: BaseException) -> str:
    """The type's name; for a back end that failed, with that of the error in it."""
    inner = getattr(error, "inner_exception", None)
    name = type(error).__name__
    return name if inner is None else f"{name} of {_kind(inner)}"


def _ours(*, strict: bool) -> Callable[..., Any]:
    return partial(coilwork_backend, options={"strict": strict})


def _aot_eager() -> Callable[..., Any]:
    found: Callable[..., Any] = torch._dynamo.lookup_backend("aot_eager")
    return found


def _traced(
    function: Callable[..., Any],
    sample: Sample,
    backend: Callable[..., Any],
    *,
    dynamic: bool,
    training: bool = False,
) -> Refusal:
    """What becomes of a call that `backend` compiles."""
    torch._dynamo.reset()
    counted = Counted(backend)
    found = _watched(_callable(function, counted, dynamic=dynamic), sample, training=training)
    return replace(found, graphs=counted.graphs)


def _callable(
    function: Callable[..., Any], backend: Callable[..., Any], *, dynamic: bool
) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    found: Callable[..., Any] = torch.compile(call, backend=backend, dynamic=dynamic or None)
    return found


def _watched(compiled: Callable[..., Any], sample: Sample, *, training: bool = False) -> Refusal:
    """What becomes of a call, with the compiler's warnings."""
    with warnings.catch_warnings(record=True) as caught, torch._dynamo.config.patch(**_MOST_CODES):
        warnings.simplefilter("always")
        found = _refusal(compiled, sample, training=training)
    fallbacks = [str(one.message) for one in caught if issubclass(one.category, CoilworkFallbackWarning)]
    return replace(found, fallbacks=tuple(fallbacks))


def run_units(
    units: Sequence[Unit], *, processes: int, seconds: float, device: str = "cpu"
) -> Iterator[dict[str, Any]]:
    """The records of all units, as worker processes finish them."""
    settings = Settings(device=device, samples=0, limit_s=120.0, deadline=time.monotonic() + seconds)
    done: SimpleQueue[list[dict[str, Any]]] = SimpleQueue()
    threads, _ = run([Part(unit=unit) for unit in units], settings, processes=processes, finished=done)
    while any(thread.is_alive() for thread in threads) or not done.empty():
        try:
            yield from done.get(timeout=1.0)
        except Empty:
            continue


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", default="", help="names, by commas; `nn.*` for a prefix")
    add("--shard", default="0/1", help="i/n: every n-th name, from the i-th, counted from 0")
    add("--ways", default="bad,bad_dynamic")
    add("--processes", type=int, default=1)
    add("--seconds", type=float, default=1e9, help="begin nothing after this many seconds")
    add(
        "--results",
        type=Path,
        default=Path("bad_calls.jsonl"),
        help="appended to; what it holds is not tried again",
    )
    chosen = parser.parse_args()
    records = read_progress(chosen.results, again=False)
    ways = chosen.ways.split(",")
    known = {(record["op"], record["way"]) for record in records}
    names = chosen_names(dict.fromkeys([*subjects(), *KINDS]), shard=chosen.shard, only=chosen.only)
    with chosen.results.open("a") as file:
        units = [
            Unit(op=name, way=way, dtype="") for way in ways for name in names if (name, way) not in known
        ]
        for record in run_units(
            units,
            processes=chosen.processes,
            seconds=chosen.seconds,
        ):
            records.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
            if record["status"] not in ("ok", "skipped"):
                print(
                    f"{record['status']:9} {record['op']} {record['way']}: {record['detail']}  "
                    f"[{record['sample']}]"
                )
    print(summary(records))
    return 1 if any(record["status"] not in ("ok", "skipped", "torch") for record in records) else 0


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """How many calls of how many names were refused, and what became of the others."""
    calls: Counter[str] = Counter()
    for record in records:
        calls[record["status"]] += max(1, record["samples"]) if record["status"] != "skipped" else 0
    names = {record["op"] for record in records if record["status"] != "skipped"}
    told = ", ".join(f"{status} {count}" for status, count in sorted(calls.items()) if status != "skipped")
    return f"{calls.total()} calls of {len(names)} names that eager refuses: {told}"


if __name__ == "__main__":
    raise SystemExit(main())
