"""Random graphs, kernels, schedules and programs from a seed. They have every kind of node; they need not
make sense.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Literal

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    Constant,
    DeviceValue,
    GraphInput,
    GraphOutput,
    Item,
    ListValue,
    Ref,
    SymbolOutput,
    TorchValue,
    make_contiguous_strides,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, ceildiv, floordiv, maximum, minimum, mod, symbol
from coilwork_ir.kernels import (
    Candidate,
    ComboKernel,
    Decision,
    Kernel,
    KernelCall,
    Member,
    Proposal,
    Range,
    Schedule,
    Store,
    TensorArg,
)
from coilwork_ir.kernels.nodes import ArgRole
from coilwork_ir.loc import Origin
from coilwork_ir.loops import (
    AssertSize,
    Attention,
    AttentionGradient,
    Body,
    Check,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Graph,
    Loop,
    Mutation,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
    Window,
)
from coilwork_ir.loops.nodes import BLOCK_SIDES, STATE_LAYOUTS, BlockList, BlockLists, Weights
from coilwork_ir.ops import REDUCE_OPS, SCALAR_OPS, SCAN_KINDS, STORE_MODES, ScanKind
from coilwork_ir.program import (
    Alloc,
    AllocPool,
    BindSymbol,
    CheckLayout,
    CheckSize,
    Comment,
    CondCall,
    Copy,
    ExternCall,
    ForkStream,
    Free,
    Instruction,
    JoinStream,
    Launch,
    LoopCall,
    PoolView,
    Program,
    RecordEvent,
    Region,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
    WaitEvent,
)
from coilwork_ir.scalar import (
    Combine,
    Scalar,
    cast,
    combine,
    const,
    contract,
    index_value,
    load,
    op,
    parameter,
    placeholder,
    reduce,
    scan,
    sort,
    where,
)

FLOATS = (DType.F32, DType.F64)
STRINGS = ("", "plain", 'quo"te', "back\\slash", "line\nbreak", "# no comment", "größe \u2192 ✓", "`tick` %x")
NUMBERS = (0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e-300, -3.25e20, 0.1)


class Maker:
    """One random value after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.count = 0
        self.sizes = (symbol("s0", lo=2), symbol("s1", lo=0, hi=77), symbol("s2"))

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def size(self) -> Expr:
        rng = self.rng
        base = rng.choice((*self.sizes, as_expr(rng.randint(1, 9))))
        match rng.randrange(6):
            case 0:
                return base * rng.randint(2, 5) + 1
            case 1:
                return floordiv(base, 3) + 1
            case 2:
                return maximum(base, 4)
            case 3:
                return ceildiv(base, 8) * 8
            case _:
                return base

    def buffer(self, rank: int | None = None, dtype: DType | None = None) -> Buffer:
        rng = self.rng
        shape = tuple(self.size() for _ in range(rng.randrange(4) if rank is None else rank))
        strides = make_contiguous_strides(shape)
        if rng.random() < 0.3:
            strides = tuple(self.size() for _ in shape)
        return Buffer(
            name=self.name("b"),
            dtype=dtype or rng.choice(tuple(DType)),
            shape=shape,
            strides=strides,
            device=rng.choice(("cpu", "cpu", "cuda:0", "meta")),
        )

    def ranges(self, stem: str, count: int) -> tuple[Expr, ...]:
        return tuple(symbol(f"{stem}{k}", extent=self.size()) for k in range(count))

    def origins(self) -> tuple[Origin, ...]:
        rng = self.rng
        return tuple(
            Origin(
                node=self.name("n"),
                op="aten.mul.Tensor",
                file=rng.choice(("", "model.py", "a b/c.py")),
                line=rng.randrange(200),
                code=rng.choice(STRINGS),
                module=rng.choice(("", "layers.0.attn")),
            )
            for _ in range(rng.randrange(3))
        )

    def argument(self, depth: int = 0) -> Argument:
        rng = self.rng
        choices: list[Argument] = [
            Ref(self.name("b")),
            Item(self.name("b")),
            self.size(),
            True,
            False,
            -7,
            rng.choice(NUMBERS[:5] + NUMBERS[6:]),
            complex(1.5, -2.0),
            rng.choice(STRINGS),
            DType.BF16,
            TorchValue("strided"),
            DeviceValue("cuda:1"),
            None,
        ]
        if depth < 2:
            choices.append(ListValue(tuple(self.argument(depth + 1) for _ in range(rng.randrange(3)))))
        return rng.choice(choices)

    def arguments(self) -> tuple[Argument, ...]:
        return tuple(self.argument() for _ in range(self.rng.randrange(4)))

    def index(self, ranges: tuple[Expr, ...]) -> Expr:
        rng = self.rng
        expr = as_expr(rng.randint(-3, 3))
        for value in ranges:
            expr = expr + value * rng.choice((0, 1, 4, self.sizes[0]))
        match rng.randrange(5):
            case 0:
                return mod(expr, rng.choice((4, self.sizes[0])))
            case 1:
                return minimum(expr, self.sizes[1])
            case 2:
                return floordiv(expr, 2)
            case _:
                return expr

    def scalar(self, ranges: tuple[Expr, ...], axes: tuple[Expr, ...] = (), steps: int = 12) -> Scalar:
        """An f32 value, with reductions and scans along `axes` if there are any."""
        rng = self.rng
        whole = ranges + axes
        floats: list[Scalar] = [
            const(rng.choice(NUMBERS), DType.F32),
            load("x", [self.index(whole)], DType.F32),
        ]
        ints: list[Scalar] = [const(rng.randint(-9, 9), DType.I64), index_value(self.index(whole))]
        bools: list[Scalar] = [const(bool(rng.randrange(2)), DType.BOOL)]
        same = [
            row
            for row in SCALAR_OPS.values()
            if row.rule == "same" and row.accepts in ("float", "number", "any")
        ]
        for _ in range(steps):
            match rng.randrange(9):
                case 0:
                    floats.append(where(rng.choice(bools), rng.choice(floats), rng.choice(floats)))
                case 1:
                    bools.append(op(rng.choice(("lt", "eq", "ge")), rng.choice(floats), rng.choice(floats)))
                case 2:
                    bools.append(op(rng.choice(("isnan", "signbit")), rng.choice(floats)))
                case 3:
                    low = cast(rng.choice(floats), rng.choice((DType.BF16, DType.F16, DType.F8E4M3)))
                    floats.append(cast(low, DType.F32))
                case 4:
                    bits = op("bitcast", rng.choice(floats), dtype=DType.I32)
                    ints.append(cast(op("rshift", bits, const(3, DType.I32)), DType.I64))
                case 5:
                    mask = rng.choice((None, rng.choice(bools)))
                    at = rng.choice(ints)
                    index = placeholder(0) * 4 + self.index(whole)
                    floats.append(
                        load("w", [index], DType.F32, indirect=(at,), mask=mask, other=rng.choice(NUMBERS))
                    )
                case 6:
                    ints.append(index_value(placeholder(0) + 1, (rng.choice(ints),)))
                case 7 if axes:
                    if rng.random() < 0.1:
                        down = rng.random() < 0.5
                        floats.append(sort(rng.choice(floats), axes[0], descending=down))
                        ints.append(sort(rng.choice(floats), axes[0], output=1, descending=down))
                    elif rng.random() < 0.1:
                        halves = [cast(rng.choice(floats), DType.BF16) for _ in range(2)]
                        floats.append(contract(halves[0], halves[1], axes, DType.F32))
                    elif rng.random() < 0.7:
                        row = REDUCE_OPS[rng.choice(("sum", "max", "welford", "online_softmax", "prod"))]
                        operands = [rng.choice(floats)] + ([rng.choice(bools)] if rng.random() < 0.3 else [])
                        floats.append(reduce(row.name, operands, axes, output=rng.randrange(row.outputs)))
                    else:
                        kinds: tuple[ScanKind | None, ...] = ("sum", "min", "logcumsumexp", None)
                        kind = rng.choice(kinds)
                        backwards = rng.random() < 0.5
                        if kind is not None:
                            floats.append(scan(kind, rng.choice(floats), axes[0], reverse=backwards))
                            continue
                        together = [rng.choice(floats), rng.choice(ints)]
                        function = self.function([value.dtype for value in together])
                        floats.append(
                            scan(function, together[0], axes[0], others=together[1:], reverse=backwards)
                        )
                case _:
                    other = rng.choice(same)
                    floats.append(op(other.name, *[rng.choice(floats) for _ in range(other.arity)]))
        return floats[-1]

    def function(self, dtypes: list[DType]) -> Combine:
        """A function that combines a value of each of `dtypes`, in no order that matters."""
        count = len(dtypes)
        pairs = [(parameter(k, dtype), parameter(count + k, dtype)) for k, dtype in enumerate(dtypes)]
        return combine([op(self.rng.choice(("add", "mul", "maximum")), *pair) for pair in pairs])

    def checks(self, ranges: tuple[Expr, ...]) -> tuple[Check, ...]:
        rng = self.rng
        return tuple(
            Check(
                condition=op("lt", self.scalar(ranges, steps=3), self.scalar(ranges, steps=2)),
                message=rng.choice(STRINGS),
                error=rng.choice(("IndexError", "RuntimeError", "ZeroDivisionError")),
            )
            for _ in range(rng.choice((0, 0, 1, 2)))
        )

    def header(
        self,
    ) -> tuple[tuple[Expr, ...], tuple[GraphInput, ...], tuple[Constant, ...], tuple[GraphOutput, ...]]:
        inputs: tuple[GraphInput, ...] = (self.buffer(), self.sizes[0], self.buffer())
        constants = tuple(Constant(buffer=self.buffer(), key=key) for key in self.rng.sample(STRINGS[1:4], 2))
        outputs: tuple[GraphOutput, ...] = (Ref("b1"), self.size(), None)
        return self.sizes, inputs, constants, outputs

    # Loop IR

    def node(self, depth: int = 0) -> Node:
        rng = self.rng
        ranges = self.ranges("i", rng.randrange(4))
        origins = self.origins()
        kinds = 13 if depth == 0 else 11
        match rng.randrange(kinds):
            case 0:
                return Pointwise(
                    output=self.buffer(),
                    ranges=ranges,
                    body=self.scalar(ranges),
                    into=rng.choice((None, "b1")),
                    checks=self.checks(ranges),
                    origins=origins,
                )
            case 1:
                axes = self.ranges("r", rng.randint(1, 2))
                row = rng.choice(tuple(REDUCE_OPS.values()))
                return Reduce(
                    outputs=tuple(rng.choice((None, self.buffer())) for _ in range(row.outputs)),
                    kind=row.name,
                    ranges=ranges,
                    axes=axes,
                    body=self.scalar(ranges + axes),
                    checks=self.checks(ranges + axes),
                    origins=origins,
                )
            case 2:
                ranges = self.ranges("i", rng.randint(1, 3))
                return Scan(
                    outputs=(self.buffer(), None)[: rng.randint(1, 2)],
                    kind=rng.choice(SCAN_KINDS),
                    ranges=ranges,
                    axis=rng.choice(ranges),
                    body=self.scalar(ranges),
                    reverse=rng.random() < 0.5,
                    split=rng.choice((1, 4)),
                    checks=self.checks(ranges),
                    origins=origins,
                )
            case 3:
                ranges = self.ranges("i", rng.randint(1, 3))
                return Sort(
                    outputs=(self.buffer(), rng.choice((None, self.buffer()))),
                    ranges=ranges,
                    axis=rng.choice(ranges),
                    body=self.scalar(ranges),
                    count=rng.choice((None, self.size())),
                    descending=rng.random() < 0.5,
                    stable=rng.random() < 0.5,
                    checks=self.checks(ranges),
                    origins=origins,
                )
            case 4:
                return Scatter(
                    output=self.buffer(),
                    into=rng.choice(("b1", None)),
                    ranges=ranges,
                    index=(placeholder(0) + 1, self.index(ranges)),
                    indirect=(index_value(self.index(ranges)),),
                    value=self.scalar(ranges),
                    mode=rng.choice(STORE_MODES),
                    mask=rng.choice((None, op("isnan", self.scalar(ranges, steps=2)))),
                    covers=rng.random() < 0.3,
                    sparse=rng.random() < 0.3,
                    checks=self.checks(ranges),
                    origins=origins,
                )
            case 5:
                return View(output=self.buffer(), source="b1", offset=self.size(), origins=origins)
            case 6:
                return AssertSize(
                    lhs=self.size(),
                    relation=rng.choice(("eq", "ne", "lt", "le")),
                    rhs=self.size(),
                    message=rng.choice(STRINGS),
                    origins=origins,
                )
            case 7:
                return self.extern()
            case 8:
                return self.contraction()
            case 9:
                return self.attention() if rng.random() < 0.5 else self.attention_gradient()
            case 10:
                return self.convolution()
            case 11:
                return Cond(
                    predicate="b1",
                    then=self.graph(2, depth + 1),
                    otherwise=self.graph(1, depth + 1),
                    operands=self.arguments(),
                    outputs=(self.buffer(),),
                    origins=origins,
                )
            case _:
                is_counted = self.rng.random() < 0.5
                return Loop(
                    body=self.graph(2, depth + 1),
                    condition=None if is_counted else self.graph(1, depth + 1),
                    rounds=self.size() if is_counted else None,
                    carried=self.arguments(),
                    extra=self.arguments(),
                    outputs=(self.buffer(), self.buffer()),
                    mutates=self.mutations(),
                    origins=origins,
                )

    def contraction(self) -> Contraction:
        ranges, axes = self.ranges("i", self.rng.randint(1, 3)), self.ranges("r", self.rng.randint(1, 2))
        total = parameter(0, DType.F32)
        return Contraction(
            output=self.buffer(),
            ranges=ranges,
            axes=axes,
            left=self.scalar(ranges + axes),
            right=self.scalar(ranges + axes),
            accumulate=self.rng.choice((DType.F32, DType.F64, DType.I64)),
            epilogue=op("add", total, self.scalar(ranges)) if self.rng.random() < 0.5 else total,
            approximate=self.rng.random() < 0.2,
            origins=self.origins(),
        )

    def weights(self) -> Weights:
        rng = self.rng
        ranges, axes = self.ranges("i", rng.randint(1, 4)), self.ranges("r", 2)
        rows = ranges[:-1]
        sides = rng.sample(BLOCK_SIDES, rng.randint(1, 4))
        lists = tuple((side, BlockList(self.scalar(rows), self.scalar((*rows, axes[0])))) for side in sides)
        return Weights(
            ranges=ranges,
            axes=axes,
            query=self.scalar((*rows, axes[1])),
            key=self.scalar((*rows, *axes)),
            value=self.scalar((*ranges, axes[0])),
            accumulate=DType.F32,
            score=op("add", parameter(0, DType.F32), self.scalar((*rows, axes[0]))),
            mask=rng.choice((None, op("isnan", self.scalar((*rows, axes[0]), steps=2)))),
            dropout=rng.choice((0.0, 0.25)),
            form=rng.choice(tuple(STATE_LAYOUTS)),
            logsumexp=rng.choice(("natural", "binary")),
            blocks=rng.choice((None, BlockLists(row_block=64, key_block=128, lists=lists))),
        )

    def attention(self) -> Attention:
        rng, weights = self.rng, self.weights()
        return Attention(
            weights=weights,
            output=self.buffer(),
            logsumexp=rng.choice((None, self.buffer())),
            logsumexp_at=rng.choice((None, (*weights.rows, as_expr(0)))),
            state=tuple(rng.choice((None, self.buffer())) for _ in range(STATE_LAYOUTS[weights.form].count)),
            origins=self.origins(),
        )

    def attention_gradient(self) -> AttentionGradient:
        rng, weights = self.rng, self.weights()
        rows = weights.rows
        return AttentionGradient(
            weights=weights,
            of_query=self.buffer(),
            of_key=self.buffer(),
            of_value=self.buffer(),
            of_bias=rng.choice((None, self.buffer())),
            output=(output := rng.choice((None, self.scalar(weights.ranges)))),
            inner=self.scalar(rows) if output is None else None,
            logsumexp=self.scalar(rows),
            gradient=self.scalar(weights.ranges),
            slope=parameter(1, DType.F32),
            bias=(bias := rng.choice((None, parameter(1, DType.F32)))),
            bias_at=() if bias is None else (*rows, weights.keys),
            state=self.arguments() if weights.form != "plain" else (),
            origins=self.origins(),
        )

    def convolution(self) -> Convolution:
        rng = self.rng
        dimensions, backwards = rng.randint(1, 3), rng.random() < 0.5

        def body(prefix: str, rank: int) -> Body:
            ranges = self.ranges(prefix, rank)
            return Body(ranges=ranges, value=self.scalar(ranges))

        return Convolution(
            outputs=(self.buffer(), rng.choice((None, self.buffer())), None)
            if backwards
            else (self.buffer(),),
            value=body("x", dimensions + 2),
            weight=body("w", dimensions + 2),
            gradient=body("g", dimensions + 2) if backwards else None,
            epilogue=None if backwards else body("i", dimensions + 2),
            windows=tuple(
                Window(stride=rng.randint(1, 3), padding=rng.randrange(3), extra=rng.randrange(2))
                for _ in range(dimensions)
            ),
            groups=rng.randint(1, 4),
            transposed=rng.random() < 0.5,
            accumulate=rng.choice((DType.F32, DType.F64, DType.I64)),
            origins=self.origins(),
        )

    def mutations(self) -> tuple[Mutation, ...]:
        return tuple(Mutation(output=self.buffer(), source="b1") for _ in range(self.rng.randrange(2)))

    def extern(self) -> Extern:
        rng = self.rng
        out = rng.random() < 0.5
        bound = symbol(self.name("u"), lo=0)
        return Extern(
            target="mylib.some_op.default",
            args=self.arguments(),
            kwargs=tuple((self.name("k"), self.argument()) for _ in range(rng.randrange(3))),
            outputs=tuple(
                rng.choice((None, self.buffer(), SymbolOutput(symbol=symbol(self.name("u")))))
                for _ in range(2)
            ),
            single=rng.random() < 0.5,
            out_overload="aten.mm.out" if out else "",
            out_names=("out", "save") if out else (),
            mutates=self.mutations(),
            aliases=rng.choice(((), ((0, "b1"), (1, "b2")))),
            binds=rng.choice(((), ((bound, 0, 1),))),
            family=rng.choice(("aten", "collective", "custom")),
            implements=rng.choice(("", "convolution gradients")),
            random=rng.random() < 0.5,
            effect=rng.random() < 0.5,
            fresh=rng.random() < 0.5,
            origins=self.origins(),
        )

    def graph(self, nodes: int, depth: int = 0) -> Graph:
        symbols, inputs, constants, outputs = self.header()
        return Graph(
            name=self.name("g"),
            symbols=symbols,
            inputs=inputs,
            constants=constants,
            nodes=tuple(self.node(depth) for _ in range(nodes)),
            outputs=outputs,
            free_results=self.rng.choice(((), ("b1",))),
        )

    # Kernel IR

    def kernel(self) -> Kernel:
        rng = self.rng
        parallel = tuple(symbol(f"x{k}", extent=self.size()) for k in range(rng.randint(1, 3)))
        reduced = tuple(symbol(f"r{k}", extent=self.size()) for k in range(rng.randrange(3)))
        ranges = tuple(Range(symbol=s, kind="parallel") for s in parallel)
        if reduced and rng.random() < 0.5:
            ranges += (Range(symbol=symbol("w0", extent=self.size()), kind="sequential"),)
        ranges += tuple(Range(symbol=s, kind="reduction") for s in reduced)
        stores = tuple(
            Store(
                buffer=f"out{k}",
                index=placeholder(0) + self.index(parallel) if k else self.index(parallel),
                value=self.scalar(parallel, reduced),
                indirect=(index_value(self.index(parallel)),) if k else (),
                mode=rng.choice(STORE_MODES),
                mask=rng.choice((None, op("isnan", self.scalar(parallel, steps=2)))),
            )
            for k in range(rng.randint(1, 3))
        )
        roles: tuple[ArgRole, ...] = ("in", "out", "inout")
        return Kernel(
            name=self.name("kernel_"),
            ranges=ranges,
            args=tuple(
                TensorArg(
                    name=f"{role}{k}",
                    dtype=rng.choice(tuple(DType)),
                    role=role,
                    span=self.size(),
                    aligned=rng.random() < 0.5,
                )
                for k, role in enumerate(roles[: rng.randint(1, 3)])
            ),
            sizes=self.sizes,
            stores=stores,
            aliasing=rng.choice(((), (("out0", "in0"), ("out1", "in1")))),
            checks=self.checks(parallel),
            workspace=rng.choice(("", "inout2")),
            numerics=rng.choice(("fast", "eager", "strict")),
            origins=self.origins(),
        )

    def combined(self) -> Kernel:
        body = self.kernel()
        names = [arg.name for arg in body.args]
        members = tuple(
            Member(
                args=tuple(f"m{k}_{name}" for name in names),
                sizes=tuple(self.size() for _ in range(2 * (k % 2))),
            )
            for k in range(self.rng.randint(1, 4))
        )
        return replace(
            body,
            args=tuple(replace(arg, name=f"m0_{arg.name}") for arg in body.args),
            ranges=(),
            stores=(),
            checks=(),
            combined=ComboKernel(body=replace(body, origins=()), members=members),
        )

    def schedule(self) -> Schedule:
        rng = self.rng
        symbols, inputs, constants, outputs = self.header()
        kernel = Kernel(
            name="copy",
            ranges=(),
            args=(
                TensorArg(name="in0", dtype=DType.F32, role="in", span=as_expr(1)),
                TensorArg(name="out0", dtype=DType.F32, role="out", span=as_expr(1)),
            ),
            stores=(Store(buffer="out0", index=as_expr(0), value=load("in0", [as_expr(0)], DType.F32)),),
        )
        steps: list[KernelCall | View | AssertSize] = []
        buffers: list[Buffer] = []
        for _ in range(4):
            made = self.buffer()
            buffers.append(made)
            if rng.random() < 0.3:
                steps.append(View(output=made, source="b1", offset=self.size(), origins=self.origins()))
                continue
            into = ((made.name, "b1"),) if rng.random() < 0.4 else ()
            sizes = tuple(self.size() for _ in range(rng.randrange(2)))
            steps.append(
                KernelCall(
                    kernel="copy",
                    args=("b2", made.name),
                    sizes=sizes,
                    into=into,
                    stream=rng.choice(("", "s1")),
                    origins=self.origins(),
                )
            )
        decisions = tuple(
            Decision(
                rule="fuse-vertical",
                subjects=("b1", rng.choice(STRINGS)),
                accepted=rng.random() < 0.5,
                reason=rng.choice(STRINGS),
                numbers=(("bytes", 1.5e9), ("ratio", rng.random())),
            )
            for _ in range(3)
        )
        return Schedule(
            name=self.name("s"),
            symbols=symbols,
            inputs=inputs,
            constants=constants,
            kernels=(kernel, self.kernel(), self.combined()),
            proposals=self.proposals(kernel),
            buffers=tuple(buffers),
            steps=tuple(steps),
            outputs=outputs,
            decisions=decisions,
        )

    def proposals(self, kernel: Kernel) -> tuple[Proposal, ...]:
        """None, or how a template wants `kernel` to run."""
        candidates = tuple(
            Candidate(directives=self.rng.choice(("threads", "warps 4")), reason=self.rng.choice(STRINGS))
            for _ in range(self.rng.randrange(3))
        )
        return (Proposal(kernel=kernel.name, candidates=candidates),) if candidates else ()

    # Programs

    def instruction(self, depth: int) -> Instruction:
        rng = self.rng
        match rng.randrange(16 if depth == 0 else 12):
            case 0:
                what: Literal["size", "stride"] = rng.choice(("size", "stride"))
                return BindSymbol(symbol=rng.choice(self.sizes), buffer="b1", dim=rng.randrange(3), what=what)
            case 1:
                aligned = rng.random() < 0.5
                return CheckLayout(buffer="b1", aligned=aligned, asserted=not aligned or rng.random() < 0.5)
            case 2:
                return Alloc(buffer=self.buffer())
            case 3:
                return AllocPool(pool=self.name("pool"), size_bytes=self.size(), device="cuda:0")
            case 4:
                return PoolView(buffer=self.buffer(), pool="pool1", offset_bytes=self.size())
            case 5:
                return Reuse(buffer=self.buffer(), source="b1")
            case 6:
                return Reinterpret(
                    buffer=self.buffer(), source="b1", offset=self.size(), origins=self.origins()
                )
            case 7:
                sizes = tuple(self.size() for _ in range(rng.randrange(3)))
                stream = rng.choice(("", "s1"))
                return Launch(
                    kernel="copy", args=("b1", "b2"), sizes=sizes, stream=stream, origins=self.origins()
                )
            case 8:
                bound = symbol(self.name("u"), lo=0)
                outputs = tuple(
                    rng.choice((None, self.buffer(), SymbolOutput(symbol=bound))) for _ in range(2)
                )
                tensors = [k for k, output in enumerate(outputs) if isinstance(output, Buffer)]
                return ExternCall(
                    target="aten.some.default",
                    args=self.arguments(),
                    kwargs=tuple((self.name("k"), self.argument()) for _ in range(rng.randrange(3))),
                    out=rng.choice(((), (("out", "b1"), ("save", "b2")))),
                    outputs=outputs,
                    single=rng.random() < 0.5,
                    binds=rng.choice(((), ((bound, 0, 1),))),
                    aligned=tuple(k for k in tensors if rng.random() < 0.5),
                    implements=rng.choice(("", "convolution")),
                    stream=rng.choice(("", "s1")),
                    origins=self.origins(),
                )
            case 9:
                return CheckSize(
                    lhs=self.size(),
                    relation="le",
                    rhs=self.size(),
                    message=rng.choice(STRINGS),
                    origins=self.origins(),
                )
            case 10:
                return rng.choice((Free(names=("b1", "b2")), Comment(text=rng.choice(STRINGS))))
            case 11:
                return self.on_streams()
            case 12:
                return Region(
                    kind=rng.choice(("capture", "partition", "nested")),
                    inputs=rng.choice(((), ("b1", "s1"))),
                    outputs=rng.choice(((), ("b2",))),
                    symbols=rng.choice(((), self.sizes[:2])),
                    body=tuple(self.instruction(depth) for _ in range(rng.randrange(3))),
                    why=rng.choice(STRINGS),
                    name=rng.choice(("", "part")),
                )
            case 13:
                return CondCall(
                    predicate="b1",
                    then=self.program(2, depth + 1),
                    otherwise=self.program(1, depth + 1),
                    operands=self.arguments(),
                    outputs=(self.buffer(),),
                    origins=self.origins(),
                )
            case 14:
                return SubprogramCall(
                    body=self.program(1, depth + 1),
                    operands=self.arguments(),
                    outputs=(self.buffer(),),
                    origins=self.origins(),
                )
            case _:
                is_counted = self.rng.random() < 0.5
                return LoopCall(
                    body=self.program(2, depth + 1),
                    condition=None if is_counted else self.program(1, depth + 1),
                    rounds=self.size() if is_counted else None,
                    carried=self.arguments(),
                    extra=self.arguments(),
                    outputs=(self.buffer(),),
                    origins=self.origins(),
                )

    def on_streams(self) -> Instruction:
        rng = self.rng
        stream = rng.choice(("", "s1", "s2"))
        return rng.choice(
            (
                ForkStream(stream="s1", device="cuda:0", after=stream),
                RecordEvent(event="e1", device="cuda:0", stream=stream),
                WaitEvent(event="e1", stream=rng.choice((stream, None))),
                JoinStream(stream="s1", into=stream),
                Copy(
                    source="b1",
                    target="b2",
                    non_blocking=rng.random() < 0.5,
                    stream=stream,
                    origins=self.origins(),
                ),
            )
        )

    def program(self, instructions: int, depth: int = 0) -> Program:
        symbols, inputs, constants, outputs = self.header()
        kernels = (self.kernel(),) if depth == 0 else ()
        return Program(
            name=self.name("p"),
            symbols=symbols,
            inputs=inputs,
            constants=constants,
            kernels=kernels,
            proposals=self.proposals(kernels[0]) if kernels else (),
            instructions=(*(self.instruction(depth) for _ in range(instructions)), Return(values=outputs)),
            peak_bytes=self.rng.choice((None, self.size())),
        )
