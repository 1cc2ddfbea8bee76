"""Write a kernel as the text of a C++ file: the code generator as other packages see it.

`plan_kernel` rewrites a kernel into pieces and settles a mapping for each. `write_planned` writes their
nests, the functions these need, and the entry that runs the nests in order. `CppCodegen` offers both as
`coilwork_ir.backend.Codegen`.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_cpp.nests.attention import ForwardBlock
from coilwork_cpp.nests.attention_gradient import GradientBlock
from coilwork_cpp.nests.columns import write_column_body
from coilwork_cpp.nests.loops import Span, compute_thread_grain, count_units, declare_units_span, decode_unit
from coilwork_cpp.nests.pointwise import write_pointwise_body
from coilwork_cpp.nests.rows import write_row_body
from coilwork_cpp.options import CppOptions, parse_options
from coilwork_cpp.planning.attention import AttentionPlan, is_forward, plan_attention, propose_attention
from coilwork_cpp.planning.legality import check_loops, settle_user_mappings
from coilwork_cpp.planning.plan import Plan, plan_of, refuse_unknown
from coilwork_cpp.planning.regions import Region, check_nests_in_order, list_regions
from coilwork_cpp.planning.table import has_ranges, list_common_directives, propose
from coilwork_cpp.prelude.prelude import list_declarations
from coilwork_cpp.rewrites.split import Scratch
from coilwork_cpp.rewrites.table import Launch, rewrite_launch
from coilwork_cpp.values.block import Block
from coilwork_cpp.values.element_types import SMALL_FLOATS, get_memory_type
from coilwork_ir.device_traits import PROCESSOR
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError, ParseError, VerifyError
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, add_all, as_expr
from coilwork_ir.kernel_source import KernelSource, SourceArg
from coilwork_ir.kernels import Kernel, TensorArg
from coilwork_ir.kernels.rewrite import list_printed_roots, store_small_floats_as_bits
from coilwork_ir.kernels.verify_template_kernels import check_core_taken
from coilwork_ir.mapping import (
    Contract,
    Directive,
    Functions,
    Join,
    Mapped,
    Mapping,
    find,
    find_given,
    format_mapped,
    make_single_version,
    parse_given,
    parse_mapping,
    refuse_given,
)
from coilwork_ir.mapping.user_mappings import refuse_candidate
from coilwork_ir.mapping.verify import find_fault
from coilwork_ir.scalar import Const, Load, Op, iterate_postorder
from coilwork_ir.syntax.cpp import (
    ZERO,
    Call,
    Code,
    CppPrinter,
    Declare,
    Do,
    Element,
    For,
    Function,
    If,
    Literal,
    Name,
    Return,
    Source,
    Statement,
    Struct,
    Unary,
    Verbatim,
    is_mentioned,
    list_called,
)
from coilwork_ir.target import Capabilities, RowWalks, Sorting, Target

# ---- capabilities ----


def get_capabilities(target: Target) -> Capabilities:
    """Return the capabilities of kernels for `target`, a CPU."""
    return Capabilities(
        # nothing is kept, but a row is read again at no cost from the share of the cache that a core has
        rows=RowWalks(kept_bytes=target.l2_bytes // target.multiprocessors),
        sorting=Sorting(longest=None, most_bytes=8),
        cuts_rows=True,
        opens_extents=True,
        takes_candidates=True,
        cores=frozenset({"attention", "attention-gradient"}),
    )


# ---- emission ----


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The work of a nest in each of its units, or a part of that: a region of `kernel`, as `plan` says."""

    kernel: Kernel
    region: Region
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nest:
    """One loop nest of the file: its function, and what the entry passes to `run`."""

    function: Function
    units: Code
    grain: Code
    check: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A launch that is ready to be written.

    Attributes:
        kernel: what callers see: arguments, sizes, checks, name.
        launch: what is computed, in pieces.
        common: directives of the whole launch.
        mappings: how each piece of each phase runs.
    """

    kernel: Kernel
    launch: Launch
    common: tuple[Directive, ...]
    mappings: tuple[tuple[Mapping, ...], ...]

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        """The arguments, and scratch memory."""
        return (*self.kernel.args, *map(_make_tensor_arg, self.launch.scratch))

    @property
    def pieces(self) -> tuple[tuple[Kernel, Mapping], ...]:
        """Every piece with its mapping, in order."""
        return tuple(
            pair
            for kernels, mappings in zip(self.launch.phases, self.mappings, strict=True)
            for pair in zip(kernels, mappings, strict=True)
        )


def _make_tensor_arg(scratch: Scratch) -> TensorArg:
    return TensorArg(name=scratch.name, dtype=scratch.dtype, role="inout", span=scratch.elements)


def plan_kernel(kernel: Kernel, target: Target, options: CppOptions) -> Planned:
    """`kernel` in pieces, and a closed mapping for each.

    Raises:
        EmitError: the kernel holds something that has no C++ form.
    """
    _require_cpu_kernel(kernel)
    kernel = store_small_floats_as_bits(kernel, kept=SMALL_FLOATS)
    loops = target.machine.loops
    launch = rewrite_launch(kernel, options, loops)
    common = list_common_directives(kernel, target, options)
    bare = Planned(kernel=kernel, launch=launch, common=common, mappings=())
    candidates = () if options.batch_invariant else options.candidates
    planned = _plan_candidates(bare, target, candidates) if candidates else _plan_named(bare, target, ())
    text = find_given(options.mappings, kernel)
    versions = () if text is None else parse_given(text, kernel, target.kind)
    if not versions:
        return planned
    mappings = settle_user_mappings(kernel, versions, launch.phases, common)
    return replace(planned, common=mappings[0][0].directives, mappings=mappings)


def _plan_named(bare: Planned, target: Target, named: tuple[Directive, ...]) -> Planned:
    """`bare` with mappings that have the directives `named`, and what is decided of the rest."""
    args, loops = {t.name: t for t in bare.tensors}, target.machine.loops
    mappings = tuple(propose(pieces, bare.common, args, loops, named) for pieces in bare.launch.phases)
    return replace(bare, mappings=mappings)


def _plan_candidates(bare: Planned, target: Target, texts: Sequence[str]) -> Planned:
    """`bare` as the first of `texts` says that is legal and has loops.

    Raises:
        EmitError: there is none, for the reason that the first text is none.
    """
    faults: list[EmitError] = []
    for text in texts:
        try:
            named = parse_mapping(text).directives
            planned = _plan_named(bare, target, named)
            _check_named(planned, named)
            write_planned(planned, target)
        except (EmitError, VerifyError, ParseError) as error:
            faults.append(refuse_candidate(bare.kernel, text, error))
        else:
            return planned
    raise faults[0]


def _check_named(planned: Planned, named: tuple[Directive, ...]) -> None:
    """Refuse directives that are not legal where they are said, or are said of no piece."""
    pieces = [pair for pair in planned.pieces if has_ranges(pair[0], named)]
    if not pieces:
        raise EmitError(named[0].keyword(), "no loop nest has all ranges that the candidate names")
    for piece, mapping in pieces:
        fault = find_fault(piece, mapping)
        if fault is not None and (fault[0] is None or fault[0] in named):
            raise EmitError("mapping" if fault[0] is None else fault[0].keyword(), fault[1])


def describe_kernel(kernel: Kernel, target: Target, options: CppOptions) -> str:
    """Return the mappings of `kernel` as text for people, and the pieces that it is made into.

    Raises:
        EmitError: the kernel holds something that has no C++ form.
    """
    if kernel.core is not None:
        plan = plan_core(kernel, target, options)
        mapping = make_single_version(kernel.name, target.kind, plan.mapping)
        return format_mapped(kernel, [Mapped(kernel=kernel, versions=mapping)])
    mapped = [
        Mapped(kernel=piece, versions=make_single_version(kernel.name, target.kind, mapping))
        for piece, mapping in plan_kernel(kernel, target, options).pieces
    ]
    return format_mapped(kernel, mapped)


def emit_kernel(kernel: Kernel, target: Target, options: CppOptions) -> KernelSource:
    """Return the source of `kernel`."""
    if kernel.core is not None:
        return _write_attention(plan_core(kernel, target, options), target)
    planned = plan_kernel(kernel, target, options)
    try:
        return write_planned(planned, target)
    except EmitError as error:
        if find_given(options.mappings, kernel) is None or not error.code.startswith("mapping"):
            raise
        raise refuse_given(kernel, error) from error


def write_planned(planned: Planned, target: Target) -> KernelSource:
    """Return the source of a launch, as its mappings say.

    Raises:
        EmitError: a directive has no C++ form, by its name.
    """
    kernel, tensors, aliased = planned.kernel, planned.tensors, _find_aliased(planned.kernel)
    opaque = Name(_OPAQUE) if _MASKED in target.features else None
    nests: list[_Nest] = []
    for works in _group_works(planned):
        nests.append(_write_nest(f"nest_{len(nests)}", works, kernel, tensors, aliased, opaque))
    return _write_file(kernel, planned.launch.scratch, nests, planned.common, target)


# Masked accesses to vectors of any length, of which g++ makes whole ones where it knows the mask.
_MASKED: Final = "avx512vl"
_OPAQUE: Final = "opaque_true"

# GCC (12) makes `-x` of `0 - x` where x is never -0, as an integer or a magnitude is, at every level of
# optimisation: 0 becomes -0. It does not where rounding may be another than to nearest.
_SIGN_OF_ZERO: Final = '#pragma GCC optimize("rounding-math")'


def _adds_zero(kernel: Kernel) -> bool:
    """Tell if `kernel` adds something to the constant 0, or subtracts it from that."""
    roots = (*list_printed_roots(kernel), *(() if kernel.core is None else kernel.core.bodies))
    return any(
        isinstance(node, Op)
        and node.op in ("add", "sub", "fma")
        and node.dtype.is_float
        and any(isinstance(o, Const) and float(o.value) == 0.0 for o in node.operands)
        for node in iterate_postorder(roots)
    )


def _write_file(
    kernel: Kernel,
    scratch: Sequence[Scratch],
    nests: Sequence[_Nest],
    directives: Sequence[Directive],
    target: Target,
) -> KernelSource:
    """Return the source of `nests` and the entry that runs them; `directives` say how exact functions are."""
    tensors = (*kernel.args, *map(_make_tensor_arg, scratch))
    items: tuple[Struct | Function, ...] = (
        _arguments_struct(kernel, tensors),
        *(n.function for n in nests),
        _write_entry(kernel, tensors, nests),
    )
    functions = find(directives, Functions)
    vector_math = functions is not None and functions.kind == "vector"
    contracted = find(directives, Contract) is not None
    contraction = () if contracted else ('#pragma GCC optimize("fp-contract=off")',)
    zeros = (_SIGN_OF_ZERO,) if _adds_zero(kernel) else ()
    before = (*contraction, *zeros, *list_declarations(list_called(items), vector_math=vector_math))
    file = Source(heading=_format_heading(kernel, target), items=(*map(Verbatim, before), *items))
    return KernelSource(
        name=kernel.name,
        language="cpp",
        suffix="cpp",
        text=CppPrinter(clear=True).source(file),
        entry=kernel.name,
        args=_source_args(kernel, scratch),
        checks=tuple(check.text for check in kernel.checks),
        target=target.name,
        features=target.features,
        read_bytes=_count_traffic(kernel, ("in", "inout")),
        write_bytes=_count_traffic(kernel, ("out", "inout")),
    )


def plan_core(kernel: Kernel, target: Target, options: CppOptions) -> AttentionPlan:
    """Return how `kernel`, whose core is attention or its gradient, runs.

    Raises:
        EmitError: the kernel holds something that has no C++ form, or a user's mapping has no loops.
    """
    _require_cpu_kernel(kernel)
    kernel = store_small_floats_as_bits(kernel, kept=SMALL_FLOATS)
    text = find_given(options.mappings, kernel)
    versions = () if text is None else parse_given(text, kernel, target.kind)
    if not versions:
        return propose_attention(kernel, list_common_directives(kernel, target, options))
    if len(versions) > 1:
        raise refuse_given(kernel, EmitError("mapping", "attention has one version for all sizes"))
    try:
        (version,) = versions[0].versions
        fault = find_fault(kernel, version.mapping)
        if fault is not None:
            raise EmitError("mapping" if fault[0] is None else fault[0].keyword(), fault[1])
        return plan_attention(kernel, version.mapping)
    except EmitError as error:
        raise refuse_given(kernel, error) from error


def _write_attention(plan: AttentionPlan, target: Target) -> KernelSource:
    """Return the source of an attention or its gradient."""
    kernel, grain = plan.kernel, target.machine.loops.grain
    args = {t.name: t for t in kernel.args}
    kind = ForwardBlock if is_forward(plan.core) else GradientBlock
    body = kind(plan, args, grain).write()
    function = Function(
        head="static void nest_0",
        parameters=("i64 begin", "i64 end", "void* context"),
        body=(*_declare_arguments(kernel, kernel.args), *body.before, *body.loop),
        comment=f"Writes {', '.join(dict.fromkeys(s.buffer for s in kernel.stores))}.",
    )
    nest = _Nest(function=function, units=body.units, grain=body.grain, check=None)
    return _write_file(kernel, (), (nest,), plan.mapping.directives, target)


def _require_cpu_kernel(kernel: Kernel) -> None:
    """Refuse what is scheduled for GPUs alone."""
    if kernel.combined is not None:
        raise EmitError(
            "combined",
            (
                f"kernel {kernel.name} shares a launch among {len(kernel.combined.members)} computations, "
                "as on GPUs"
            ),
            origins=kernel.origins,
            remedy="schedule for a CPU, or with combine=False",
        )
    if any(r.kind == "sequential" for r in kernel.ranges):
        raise EmitError(
            "sequential",
            f"kernel {kernel.name} reduces rows and columns together, for registers that only GPUs have",
            origins=kernel.origins,
            remedy="schedule it for the CPU, where rows and columns are reduced by kernels of their own",
        )


def _source_args(kernel: Kernel, memory: Sequence[Scratch]) -> tuple[SourceArg, ...]:
    tensors = tuple(
        SourceArg(name=a.name, role=a.role, dtype=a.dtype, aligned=a.aligned) for a in kernel.args
    )
    sizes = tuple(SourceArg(name=s.name, role="size", dtype=DType.I64) for s in kernel.sizes)
    scratch = tuple(
        SourceArg(name=s.name, role="scratch", dtype=s.dtype, aligned=True, elements=s.elements)
        for s in memory
    )
    return tensors + sizes + scratch


def _count_traffic(kernel: Kernel, roles: tuple[str, ...]) -> Expr:
    return add_all([as_expr(0), *(a.span * a.dtype.itemsize for a in kernel.args if a.role in roles)])


def _format_heading(kernel: Kernel, target: Target) -> str:
    space = ", ".join(f"{r.symbol.name} < {r.extent!r}" for r in kernel.ranges)
    lines = [f"{kernel.name} for {target.name}", f"Ranges: {space or 'none'}."]
    lines += [str(origin) + (f": {origin.code}" if origin.code else "") for origin in kernel.origins]
    return "\n".join(lines)


def _find_aliased(kernel: Kernel) -> frozenset[str]:
    """Arguments whose memory another argument may share."""
    return frozenset(name for pair in kernel.aliasing for name in pair)


def _fields(kernel: Kernel, tensors: Sequence[TensorArg]) -> list[tuple[str, str]]:
    """Type and name of every parameter, tensors and scratch first, then sizes."""
    pointers = [(f"{'const ' if t.role == 'in' else ''}{get_memory_type(t.dtype)}*", t.name) for t in tensors]
    return pointers + [("i64", size.name) for size in kernel.sizes]


def _arguments_struct(kernel: Kernel, tensors: Sequence[TensorArg]) -> Struct:
    fields = [f"{kind} {name}" for kind, name in _fields(kernel, tensors)]
    if kernel.checks:
        fields.append("u8* failed_checks")
    return Struct("Arguments", tuple(fields))


def _group_works(planned: Planned) -> list[list[_Work]]:
    """Return the work of each nest of the file: what is joined shares one."""
    args = {t.name: t for t in planned.tensors}
    groups: list[list[_Work]] = []
    for kernel, mapping in planned.pieces:
        check_nests_in_order(kernel, mapping.nests)
        for nest, region in zip(mapping.nests, list_regions(kernel, mapping.nests), strict=True):
            refuse_unknown(kernel, (*planned.common, *nest.directives))
            plan = plan_of(kernel, region, nest, planned.common)
            check_loops(kernel, region, plan, args)
            work = _Work(kernel=kernel, region=region, plan=plan)
            if find(nest.directives, Join) is None:
                groups.append([work])
            elif groups and groups[-1][0].plan.threaded == work.plan.threaded:
                groups[-1].append(work)
            else:
                raise EmitError(
                    "mapping-join", f"a nest of {kernel.name} has other units than the one before"
                )
    return groups


def _write_nest(
    name: str,
    works: Sequence[_Work],
    original: Kernel,
    tensors: Sequence[TensorArg],
    aliased: frozenset[str],
    opaque: Name | None,
) -> _Nest:
    args = {t.name: t for t in tensors}
    plan = works[0].plan
    sizes: dict[Expr, Code] = {size: Name(size.name) for size in original.sizes}
    ranges = (r.symbol.name for work in works for r in work.kernel.ranges)
    names = FreshNames({*args, *(s.name for s in original.sizes), *ranges, _OPAQUE})
    top = Block(args=args, symbols=sizes, facts=works[0].region.facts, names=names, opaque=opaque)
    unit = top.open_nested()
    together = plan.together
    if together:
        axis = plan.threaded[0]
        spans = {axis.symbol: declare_units_span(unit, axis, Name("begin"), Name("end"))}
    else:
        spans = decode_unit(unit, plan, Name("unit"))
    before: tuple[Declare, ...] = ()
    for work in works:
        part = Block(args=args, symbols=unit.symbols, facts=work.region.facts, names=names, opaque=opaque)
        before += _write_body(part, work, spans)
        unit.add(*part.body())
    walked = unit.body()
    loop = walked if together else (For("unit", Name("begin"), Name("end"), walked),)
    regions = [work.region for work in works]
    hidden: tuple[Declare, ...] = ()
    if opaque is not None and is_mentioned(opaque, loop):
        hidden = (Declare("const bool", opaque.text, Call("hidden_true")),)
    prologue = (*_write_prologue(original, tensors, regions, aliased), *hidden)
    function = Function(
        head=f"static void {name}",
        parameters=("i64 begin", "i64 end", "void* context"),
        body=(*prologue, *before, *loop),
        comment=_describe_nest(regions, plan),
    )
    check = regions[0].check
    return _Nest(
        function=function,
        units=top.index(count_units(plan)),
        grain=compute_thread_grain([work.plan for work in works], top),
        check=None if check is None else check[0],
    )


def _write_body(unit: Block, work: _Work, spans: dict[Expr, Span]) -> tuple[Declare, ...]:
    """Return the loops of a unit of work; what it returns must be declared once per thread."""
    region, plan = work.region, work.plan
    if not region.reduction:
        write_pointwise_body(unit, region, plan, spans)
        return ()
    if plan.vector is None:
        return write_row_body(unit, region, plan, work.kernel)
    region = region.separate_columns(plan.vector.symbol)
    unit.facts = region.facts
    write_column_body(unit, region, plan, work.kernel, spans)
    return ()


def _describe_nest(regions: Sequence[Region], plan: Plan) -> str:
    parts = [
        a.symbol.name if a.block is None else f"{a.symbol.name} in blocks of {a.block}" for a in plan.threaded
    ]
    unit = f"A unit of work: {', '.join(parts) or 'everything'}."
    check = regions[0].check
    if check is not None:
        return f"Check {check[0]}: {check[1].message}\n{unit}"
    return f"Writes {', '.join(dict.fromkeys(s.buffer for r in regions for s in r.stores))}. {unit}"


def _write_prologue(
    kernel: Kernel, tensors: Sequence[TensorArg], regions: Sequence[Region], aliased: frozenset[str]
) -> tuple[Statement, ...]:
    declarations = _declare_arguments(kernel, tensors, aliased)
    if regions[0].check is not None:
        declarations.append(Declare("u8* const", "failed_checks", Name("a.failed_checks")))
    used = _list_used_names(regions, kernel)
    return tuple(
        s
        for s in declarations
        if not isinstance(s, Declare) or s.name in used or s.name in ("a", "failed_checks")
    )


def _declare_arguments(
    kernel: Kernel, tensors: Sequence[TensorArg], aliased: frozenset[str] = frozenset()
) -> list[Statement]:
    declarations: list[Statement] = [
        Declare(
            "const Arguments&", "a", Unary("*", Call("static_cast<const Arguments*>", (Name("context"),)))
        )
    ]
    for kind, name in _fields(kernel, tensors):
        spelled = f"const {kind}"
        if kind.endswith("*"):
            spelled = f"{kind} const" if name in aliased else f"{kind} __restrict const"
        declarations.append(Declare(spelled, name, Name(f"a.{name}")))
    return declarations


def _list_used_names(regions: Sequence[Region], kernel: Kernel) -> frozenset[str]:
    """Arguments that a nest may mention: buffers it touches, and all sizes."""
    from_values = {v.buffer for region in regions for v in region.facts.varies if isinstance(v, Load)}
    written = {s.buffer for region in regions for s in region.stores}
    return frozenset(from_values | written | {size.name for size in kernel.sizes})


def _write_entry(kernel: Kernel, tensors: Sequence[TensorArg], nests: Sequence[_Nest]) -> Function:
    fields = _fields(kernel, tensors)
    pointers, sizes = fields[: len(kernel.args)], fields[len(tensors) :]
    scratch = fields[len(kernel.args) : len(tensors)]
    parameters = tuple(f"{kind} {name}" for kind, name in (*pointers, *sizes, *scratch))
    values = [name for _, name in fields]
    body: list[Statement] = []
    if kernel.checks:
        body.append(Declare("u8", f"failed_checks[{len(kernel.checks)}]", Literal("{}")))
        values.append("failed_checks")
    body.append(Declare("Arguments", "arguments", Literal("{" + ", ".join(values) + "}")))
    for nest in nests:
        name = Name(nest.function.head.rsplit(" ", 1)[1])
        body.append(_run_nest(name, nest))
        if nest.check is not None:
            failed = Element(Name("failed_checks"), Literal(str(nest.check)))
            body.append(If(failed, (Return(Literal(str(nest.check + 1))),)))
    if kernel.checks:
        body.append(Return(ZERO))
    result = "i64" if kernel.checks else "void"
    return Function(head=f'extern "C" {result} {kernel.name}', parameters=parameters, body=tuple(body))


def _run_nest(name: Name, nest: _Nest) -> Statement:
    return Do(Call("run", (name, nest.units, nest.grain, Unary("&", Name("arguments")))))


# ---- generator ----


class CppCodegen:
    """C++ for CPUs; implements `coilwork_ir.backend.Codegen`. It has no state: one object serves
    all threads.
    """

    @property
    def name(self) -> str:
        """`"cpp"`."""
        return "cpp"

    def supports(self, target: Target) -> bool:
        """True for processors, whose kernels are loops."""
        return target.has(PROCESSOR)

    def capabilities(self, target: Target) -> Capabilities:
        """Return the capabilities of its kernels on `target`, with the way they walk rows."""
        return get_capabilities(target)

    def emit(self, kernel: Kernel, target: Target, options: MappingOf[str, object]) -> KernelSource:
        """Source text of `kernel` for `target`; `options` are the fields of `CppOptions`.

        Raises:
            EmitError: the kernel holds something that has no C++ form, or an option is wrong.
        """
        check_core_taken(kernel, self.capabilities(target), self.name)
        return emit_kernel(kernel, target, parse_options(options))

    def describe(self, kernel: Kernel, target: Target, options: MappingOf[str, object]) -> str:
        """Return the mapping of `kernel` as text for people, or each of its pieces with that piece's mapping.

        Raises:
            EmitError: as `emit`.
        """
        check_core_taken(kernel, self.capabilities(target), self.name)
        return describe_kernel(kernel, target, parse_options(options))
