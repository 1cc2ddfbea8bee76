"""Runs one program in eager, in float64 and at every level of the compiler, and says what differs."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from coilwork.compile_options import CompileOptions
from coilwork_cache import Store
from integration_tests.fuzz.apart import Apart, InVectors
from integration_tests.fuzz.draw import default_dtype
from integration_tests.fuzz.judge import Form, Jitter, difference
from integration_tests.fuzz.levels import INTERPRETED, Levels
from integration_tests.fuzz.program import Program, materialize
from integration_tests.fuzz.ties import StableSorts
from integration_tests.fuzz.zeros import ZeroSigns

SPREAD_RUNS = 6
# How a difference begins that is none of values.
FORMS = ("dtype", "shape", "strides")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of a program.

    `kind`: "ok"; "wrong" (`level` names the first that is); "raises" (compiling or running); "torch"
    (aot_eager differs in the same way, which is not ours); "rounded" (right with `numerics="eager"`, which
    rounds to 16 bits where eager does); "skipped" (eager itself raises).
    """

    seed: int
    kind: str
    level: str = ""
    detail: str = ""
    graphs: int = 0

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @property
    def failed(self) -> bool:
        """Whether it is ours to mend."""
        return self.kind in ("wrong", "raises", "crash", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Results (and gradients), inputs afterwards, and which of them share memory: pairs of positions and
    their distance.
    """

    values: tuple[Any, ...]
    shared: tuple[tuple[int, int, int], ...]


def run(function: Callable[..., Any], program: Program, *, wide: bool = False, within: Any = None) -> Ran:
    """Call `function` on the program's inputs, within a context; with gradients if the program wants them."""
    # Made outside of the context: a mode that looks at every operation would draw other numbers.
    inputs = materialize(program, wide=wide)
    with nullcontext() if within is None else within:
        return _run(function, program, inputs)


def _run(function: Callable[..., Any], program: Program, inputs: list[Tensor]) -> Ran:
    results, gradients = _computed(function, program, inputs)
    tensors = [*results, *inputs]
    shared = tuple(_shared(tensors))
    values = tuple(v.detach() if isinstance(v, Tensor) else v for v in (*results, *gradients, *inputs))
    return Ran(values=values, shared=shared)


def _computed(
    function: Callable[..., Any], program: Program, inputs: list[Tensor]
) -> tuple[tuple[Any, ...], list[Tensor]]:
    """The results, and the gradients if the program wants them."""
    leaves: list[Tensor] = []
    if program.gradients:
        leaves = [value.requires_grad_() for value in inputs if value.is_floating_point()]
    results = tuple(function(*inputs))
    gradients: list[Tensor] = []
    if leaves:
        loss = _loss(results)
        if loss is not None:
            found = torch.autograd.grad(loss, leaves, allow_unused=True)
            gradients = [value for value in found if value is not None]
    return results, gradients


def _loss(results: Sequence[Any]) -> Tensor | None:
    """A weighted sum of every result that can be differentiated."""
    total: Tensor | None = None
    for value in results:
        if isinstance(value, Tensor) and value.requires_grad:
            weights = (
                ((torch.arange(value.numel(), device=value.device) % 7 - 3) / 4)
                .to(value.dtype)
                .reshape(value.shape)
            )
            part = (value * weights).sum().double()
            total = part if total is None else total + part
    return total


def _shared(tensors: Sequence[Tensor]) -> Iterable[tuple[int, int, int]]:
    for later, one in enumerate(tensors):
        for earlier, other in enumerate(tensors[:later]):
            if one.numel() and other.numel():
                if one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
                    yield earlier, later, one.data_ptr() - other.data_ptr()


def check(
    program: Program,
    *,
    store: Store,
    drivers_store: Store | None = None,
    wrappers: tuple[str, ...] = ("python",),
) -> Finding:
    """The finding for `program`, at all levels; generated code is called by each of `wrappers`.

    `drivers_store` keeps what runs kernels, if other than `store`, which keeps kernels.
    """
    stores = (store, drivers_store or store)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        instances = [program]
        if program.sizes:
            instances.append(program.resized())
        if program.seed % 2:
            instances.append(program.elsewhere())
        if program.device != "cpu":
            # A position out of range would leave the process without a GPU.
            instances = [one for one in instances if _expected(replace(one, device="cpu")) is not None]
        expected = [found for one in instances if (found := _expected(one)) is not None]
        if not expected:
            return Finding(seed=program.seed, kind="skipped")
        finding = _check(program, expected, stores, wrappers)
        if finding.failed and _differs_in_torch(program, expected):
            laid = replace(finding, kind="torch")
            # Values that lie as torch has it, and not as eager does, may be wrong all the same.
            expected = [_as_captured(one) for one in expected]
            finding = _check(program, expected, stores, wrappers)
            if not finding.failed or _differs_in_torch(program, expected):
                finding = laid
        if finding.kind == "wrong" and _is_narrow(program) and "numerics" not in dict(program.options):
            # Values that are kept in f32 where eager rounds them to 16 bits: right by the contract of
            # `numerics="fast"`, and far off where the difference of two such values is divided by next to
            # nothing.
            rounding = replace(program, options=(*program.options, ("numerics", "eager")))
            if _check(rounding, expected, stores, wrappers).kind == "ok":
                finding = replace(finding, kind="rounded")
        return finding


def _is_narrow(program: Program) -> bool:
    """Whether floats of 16 bits take part."""
    text = program.source() + " ".join(value.dtype for value in program.inputs)
    return "float16" in text


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One set of inputs, with what eager and float64 make of them, and the form that torch's fake tensors
    promise.

    A compiler sees fake tensors alone: where their strides or dtypes are not eager's, either is right.
    """

    program: Program
    eager: Ran
    wide: Ran
    promised: tuple[Form | None, ...]

    def otherwise(self, position: int, way: Callable[[], Any]) -> tuple[Tensor, Tensor]:
        """The value at `position` in eager and in float64, within a mode in which operations do otherwise, if
        they all can.
        """
        try:
            eager = run(self.program.function(), self.program, within=way())
            with default_dtype(torch.float64):
                wide = run(self.program.function(wide=True), self.program, wide=True, within=way())
        except (RuntimeError, TypeError, NotImplementedError):
            eager, wide = self.eager, self.wide
        return eager.values[position], wide.values[position]

    def spread(self, position: int) -> Callable[[float], list[Tensor]]:
        """The value at `position` in runs of eager whose roundings are worse, by so many ulps."""

        def runs(ulps: float) -> list[Tensor]:
            found = []
            for seed in range(SPREAD_RUNS):
                ran = run(self.program.function(), self.program, within=Jitter(seed, ulps))
                found.append(ran.values[position])
            return found

        return runs

    def zeros(self, position: int) -> Callable[[], list[Tensor]]:
        """The value at `position` in runs of eager in which zeros have one sign or the other wherever that is
        open.
        """

        def runs() -> list[Tensor]:
            ways = (ZeroSigns(negative=False), ZeroSigns(negative=True))
            return [run(self.program.function(), self.program, within=way).values[position] for way in ways]

        return runs


def _expected(program: Program) -> Expected | None:
    """None if eager raises, or does not say the same of shapes in float64."""
    try:
        eager = run(program.function(), program)
        with default_dtype(torch.float64):
            wide = run(program.function(wide=True), program, wide=True)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, ZeroDivisionError):
        return None
    pairs = list(zip(eager.values, wide.values))
    if len(eager.values) != len(wide.values) or any(a.shape != b.shape for a, b in pairs):
        return None
    # Other sizes come with other values, for which an operation that jumps may have been drawn in vain.
    if any(not a.is_floating_point() and not torch.equal(a, b) for a, b in pairs):
        return None
    return Expected(program=program, eager=eager, wide=wide, promised=_promised(program))


def _promised(program: Program) -> tuple[Form | None, ...]:
    """Forms of the results and gradients on fake tensors, of those whose sizes are known without data; none
    if the program does not run on them.

    Of products in 16 bits, for one, fake tensors are laid out by a factor that is expanded, as if memory held
    it.
    """
    # Sizes that depend on data are symbols, those of inputs are numbers.
    sizes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes) as mode:
            inputs = [mode.from_tensor(value, static_shapes=True) for value in materialize(program)]
            results, gradients = _computed(program.function(), program, inputs)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, ZeroDivisionError):
        # gradients may be what does not
        return _promised(replace(program, gradients=False)) if program.gradients else ()
    return tuple(map(_form, (*results, *gradients)))


def _form(value: Tensor) -> Form | None:
    stride = tuple(value.stride())
    return Form(dtype=value.dtype, stride=stride) if all(type(step) is int for step in stride) else None


def _check(
    program: Program, expected: Sequence[Expected], stores: tuple[Store, Store], wrappers: tuple[str, ...]
) -> Finding:
    options = CompileOptions(strict=True, verify=True, cache=False, workers=1)
    settings = replace(options, **dict(program.options))
    backend = Levels(options=settings, store=stores[0], drivers_store=stores[1], wrappers=wrappers)
    compiled = _compile(program, backend)

    def finding(kind: str, detail: str = "") -> Finding:
        level = "" if kind == "ok" else backend.level
        return Finding(seed=program.seed, kind=kind, level=level, detail=detail, graphs=backend.graphs)

    for level in (*wrappers, *_interpreted(program)):
        # Generated code first: a level that it cannot be built for is the compiler's, not the interpreter's.
        backend.level = level
        for one in expected:
            try:
                ran = run(compiled, one.program)
            except Exception:  # noqa: BLE001  whatever it raises is what is looked for
                return finding("raises", traceback.format_exc(limit=-6))
            detail = _compare(ran, one)
            if detail and level in wrappers:
                return finding("wrong", _located(backend, compiled, one, detail))
            if detail:
                return finding("wrong", detail)
    return finding("ok")


def _interpreted(program: Program) -> tuple[str, ...]:
    """The levels that an interpreter runs, of CPU tensors."""
    return INTERPRETED if program.device == "cpu" else ()


def _compile(program: Program, backend: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    # Sizes that depend on data stay in the graph.
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._dynamo.config.capture_scalar_outputs = True
    return torch.compile(program.function(), backend=backend, dynamic=program.dynamic)


def _located(backend: Levels, compiled: Callable[..., Any], one: Expected, detail: str) -> str:
    """Sets `backend.level` to the first level, in the order of compilation, that is wrong in the
    same call.
    """
    generated = backend.level
    for level in _interpreted(one.program):
        backend.level = level
        try:
            if found := _compare(run(compiled, one.program), one):
                return found
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {error}"
    backend.level = generated
    return detail


def _compare(ran: Ran, expected: Expected) -> str:
    """The first difference; empty if there is none."""
    eager, wide = expected.eager, expected.wide
    if len(ran.values) != len(eager.values):
        return f"{len(ran.values)} values instead of {len(eager.values)}"
    for position, (ours, theirs, reference) in enumerate(zip(ran.values, eager.values, wide.values)):
        promised = expected.promised[position] if position < len(expected.promised) else None
        spread, zeros = expected.spread(position), expected.zeros(position)
        found = difference(ours, theirs, reference, spread, promised, zeros)
        if found and not found.startswith(FORMS) and _agrees_otherwise(ours, expected, position):
            found = ""
        if found:
            return f"{_what(expected.program, position, len(eager.values))}: {found}"
    if _placed(ran, eager) != _placed(eager, ran):
        return f"shared memory {ran.shared} instead of {eager.shared}"
    return ""


def _placed(ran: Ran, other: Ran) -> tuple[tuple[int, ...], ...]:
    """What shares memory, with distances where both lie alike: a part of what lies otherwise begins
    elsewhere.
    """
    tensors = [[v for v in run.values if isinstance(v, Tensor)] for run in (ran, other)]
    alike = all(a.stride() == b.stride() for a, b in zip(*tensors, strict=True))
    return ran.shared if alike else tuple((earlier, later) for earlier, later, _ in ran.shared)


def _agrees_otherwise(ours: Tensor, expected: Expected, position: int) -> bool:
    """Whether it is what eager makes of elements one by one or in vectors, or of equal ones in their order:
    what it leaves open is free.
    """
    form = Form(dtype=ours.dtype, stride=tuple(ours.stride()))
    for way in (Apart, InVectors, StableSorts):
        eager, wide = expected.otherwise(position, way)
        if not difference(ours, eager, wide, lambda _, eager=eager: [eager], form, expected.zeros(position)):
            return True
    return False


def _what(program: Program, position: int, count: int) -> str:
    """A name for the value at `position` of `count`: results, gradients, inputs."""
    if position < len(program.results):
        return f"result {program.results[position]}"
    behind = position - (count - len(program.inputs))
    return f"input {program.inputs[behind].name} afterwards" if behind >= 0 else f"gradient {position}"


def _as_captured(expected: Expected) -> Expected:
    """`expected` with other forms than eager's where what AOTAutograd captures has such; as it is if that
    does not run.
    """
    program, eager = expected.program, expected.eager
    try:
        ran = run(_compile(program, "aot_eager"), program)
    except Exception:  # noqa: BLE001
        return expected
    known = (*expected.promised, *(None for _ in eager.values))
    forms = [(_form(value), _form(other), old) for value, other, old in zip(ran.values, eager.values, known)]
    return replace(expected, promised=tuple(old if form == other else form for form, other, old in forms))


def _differs_in_torch(program: Program, expected: Sequence[Expected]) -> bool:
    """Whether Dynamo, alone or with AOTAutograd, fails too with eager kernels.

    Alone it asserts what it has concluded of sizes from data, which the other may have lost.
    """
    return any(_differs(_compile(program, backend), expected) for backend in ("aot_eager", "eager"))


def _differs(compiled: Callable[..., Any], expected: Sequence[Expected]) -> bool:
    try:
        return any(_compare(run(compiled, one.program), one) for one in expected)
    except Exception:  # noqa: BLE001
        return True
