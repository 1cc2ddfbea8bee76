"""Random programs with collectives in flight: what is started, computed meanwhile, waited for, and left to
the caller.

A program is a function of a few matrices. Each rank runs the same text on numbers of its own. What eager mode
would make a race is never drawn: nothing reads a result before the wait for it, and no operand's memory is
written in place between start and wait. Copies of operands are updated meanwhile, and whatever a compiler may
take for a reason to write where the operand lies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

UNARY = ("({}).cos()", "torch.tanh({})", "{} * 0.5", "{} + 1", "torch.relu({})", "-{}", "({} + 1).sin()")
BINARY = ("{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})")
COLUMNS = (8, 256)
STARTS = (
    "all_reduce",
    "all_gather",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all",
    "broadcast",
    "all_gather_coalesced",
    "reduce_scatter_coalesced",
    "all_reduce_coalesced",
    "all_reduce_in_place",
    "broadcast_in_place",
    "uneven_all_to_all",
)
# what the group that does everything at the wait has not
REMOTE = ("all_gather_into_given", "batch")


@dataclass(slots=True)
class Value:
    """A matrix of the program: its rows, and the name of the input whose memory it is in, if it
    is in one's.
    """

    name: str
    rows: int
    input: str = ""
    contiguous: bool = True


@dataclass(frozen=True, slots=True)
class Flights:
    """A program.

    Attributes:
        source: text of `f`, whose globals are `torch`, `ops`, `group` and `other`, names of two groups of all
            ranks, and `rank`.
        inputs: rows and columns of each argument.
        unwaited: places of the results that are still in flight.
        collectives: how many it starts.
        whole: it is one graph.
        dynamic: it is compiled for sizes that are not known.
    """

    seed: int
    ranks: int
    source: str
    inputs: tuple[tuple[int, int], ...]
    unwaited: tuple[int, ...]
    collectives: int
    whole: bool = True
    dynamic: bool = False


@dataclass(slots=True)
class _Drawing:
    rng: random.Random
    ranks: int
    columns: int
    delayed: bool
    on_streams: bool
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    pending: list[tuple[Value, tuple[str, ...]]] = field(default_factory=list)
    count: int = 0
    collectives: int = 0

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(
        self, text: str, rows: int, prefix: str = "v", *, of: str = "", contiguous: bool = True
    ) -> Value:
        made = Value(self.name(prefix), rows, of, contiguous)
        self.lines.append(f"{made.name} = {text}")
        self.values.append(made)
        return made

    def value(self) -> Value:
        # what was made last is most likely the only one to read its operands
        weights = [1 + 3 * (k >= len(self.values) - 3) for k in range(len(self.values))]
        return self.rng.choices(self.values, weights)[0]

    # Steps

    def unary(self) -> None:
        given = self.value()
        self.emit(self.rng.choice(UNARY).format(given.name), given.rows)

    def binary(self) -> None:
        given = self.value()
        other = self.rng.choice([value for value in self.values if value.rows == given.rows])
        self.emit(self.rng.choice(BINARY).format(given.name, other.name), given.rows)

    def product(self) -> None:
        given = self.value()
        self.emit(f"({given.name} @ w) * 0.1", given.rows)

    def chain(self) -> None:
        """A value that only the next reads: its memory is free to be taken over."""
        given = self.value()
        first = self.emit(f"({given.name} @ w) * 0.1", given.rows)
        self.start(first)
        self.emit(f"({first.name} + 1).cos()", first.rows)

    def rows_sum(self) -> None:
        given = self.value()
        self.emit(f"{given.name} - {given.name}.sum(1, keepdim=True) * 0.01", given.rows)

    def update(self) -> None:
        given = self.value()
        if given.rows < 2:
            return
        copy = self.emit(f"{given.name}.clone()", given.rows)
        how = self.rng.choice(
            (
                f"{copy.name}[1:2] = 0.25",
                f"{copy.name}.add_(1)",
                f"{copy.name}[torch.tensor([0, 1], device=x0.device)] = 0.5",
                f"{copy.name}[:, 2:5] *= 2",
            )
        )
        self.lines.append(how)

    def functional_update(self) -> None:
        given = self.value()
        if given.rows < 2:
            return
        rows = f"torch.zeros(1, {self.columns}, device=x0.device)"
        how = self.rng.choice(
            (
                f"torch.slice_scatter({given.name}, {rows}, 0, 1, 2)",
                f"torch.select_scatter({given.name}, {rows}[0], 0, 0)",
                f"{given.name}.index_add(0, torch.tensor([1], device=x0.device), {rows} + 1)",
            )
        )
        self.emit(how, given.rows)

    def part(self) -> None:
        given = self.value()
        if given.rows > self.ranks:
            start = self.rng.randrange(given.rows - self.ranks + 1)
            self.emit(
                f"{given.name}[{start}:{start + self.ranks}]",
                self.ranks,
                of=given.input,
                contiguous=given.contiguous,
            )

    def transpose(self) -> None:
        given = self.value()
        if given.rows == self.columns:
            self.emit(f"{given.name}.t()", given.rows, of=given.input, contiguous=False)

    def mutate_input(self) -> None:
        given = self.rng.choice([value for value in self.values if value.name.startswith("x")])
        if any(given.name in used for _, used in self.pending):
            return
        # eager's views of it change as well, and so does whatever is the input itself
        self.lines.append(
            self.rng.choice((f"{given.name}.mul_(0.5)", f"{given.name}.copy_({given.name} + 1)"))
        )

    def ring(self) -> None:
        """What a rank sends to the next one, and receives from the one before, into zeros or a
        part of them.
        """
        given = self.value()
        sent = given.name if given.contiguous else f"{given.name}.contiguous()"
        zeros, start, stop = self.name("z"), 0, given.rows
        self.lines.append(f"{zeros} = torch.zeros({given.rows + 2}, {self.columns}, device=x0.device)")
        if self.rng.random() < 0.5:
            start, stop = 1, given.rows + 1
        into = f"{zeros}[{start}:{stop}]"
        following, before = f"(rank + 1) % {self.ranks}", f"(rank - 1) % {self.ranks}"
        results = [self.name("g"), self.name("g")]
        if not self.delayed and (self.on_streams or self.rng.random() < 0.5):
            peers = f"[{following}, {before}]"
            call = f'ops.batch_p2p_ops(["isend", "irecv"], {peers}, [0, 0], [{sent}, {into}], group)'
            self.lines.append(f"{', '.join(results)} = {call}")
        else:
            self.lines.append(f"{results[0]} = ops.isend({sent}, {following}, 0, group)")
            self.lines.append(f"{results[1]} = ops.irecv({into}, {before}, 0, group)")
        self.collectives += 2
        between = self.rng.choice(self.values)
        self.emit(f"({between.name} + 1).cos()", between.rows)
        self.rng.shuffle(results)
        self.lines += [f"ops.wait_tensor({result})" for result in results]
        self.emit(f"{zeros} + 1", given.rows + 2)

    def branch(self) -> None:
        """Collectives in a branch that all ranks take."""
        given = self.value()
        then, otherwise, result = self.name("then"), self.name("otherwise"), self.name("v")
        self.lines += [
            f"def {then}(a):",
            f"    g = ops.all_gather_into_tensor(a * 2, {self.ranks}, group)",
            "    u = (a + 1).cos()",
            f"    return ops.wait_tensor(g)[:{given.rows}] + u",
            f"def {otherwise}(a):",
            '    return ops.wait_tensor(ops.all_reduce(a.sin(), "sum", group)) + a',
            f'{result} = ops.wait_tensor(ops.all_reduce({given.name}.sum(), "sum", group)) > 3',
            f"{result} = torch.cond({result}, {then}, {otherwise}, ({given.name}.clone(),))",
        ]
        self.collectives += 2
        self.values.append(Value(result, given.rows))

    def start(self, given: Value | None = None) -> None:
        kind = self.rng.choice(STARTS if self.delayed else (*STARTS, REMOTE[0]))
        operand = given or self.value()
        if kind.endswith("coalesced"):
            operands = [operand, *(self.value() for _ in range(self.rng.choice((1, 1, 2))))]
        else:
            operands = [operand]
        made = _CALLS[kind](self.ranks)
        if kind == "all_gather_into_given":
            into = self.name("z")
            shape = f"{operands[0].rows * self.ranks}, {self.columns}"
            self.lines.append(f"{into} = torch.empty({shape}, device=x0.device)")
            made = replace(made, text=made.text.replace("INTO", into))
        if made.divides:
            operands = [one for one in operands if one.rows % self.ranks == 0]
            if not operands:
                return
        names = ", ".join(one.name if one.contiguous else f"{one.name}.contiguous()" for one in operands)
        listed = f"[{names}]" if kind.endswith("coalesced") else names
        result = self.name("g")
        text = made.text.format(listed, rows=operands[0].rows // self.ranks)
        if self.rng.random() < 0.2:
            text = text.replace("group)", "other)").replace("group,", "other,")
        self.lines.append(f"{result} = {text}")
        self.collectives += 1
        if kind.endswith("in_place"):
            # in a copy that nobody else has, whose name is the result's as well
            copy = self.name("c")
            self.lines[-1:] = [f"{copy} = {names}.clone()", self.lines[-1].replace(names, copy, 1)]
            if self.rng.random() < 0.5:
                self.lines[-1] = self.lines[-1].partition(" = ")[2]
                result = copy
        used = tuple(one.input for one in operands if one.input)
        for number, one in enumerate(operands):
            name = f"{result}[{number}]" if kind.endswith("coalesced") else result
            self.pending.append((Value(name, made.rows(one.rows)), used))

    def wait(self) -> None:
        if not self.pending:
            return
        at = self.rng.randrange(len(self.pending))
        result, _ = self.pending.pop(at)
        how = self.rng.randrange(6)
        if how == 0:
            # the result is read under its own name
            self.lines.append(f"ops.wait_tensor({result.name})")
            self.emit(f"{result.name} * 1.5", result.rows)
        elif how == 1:
            self.lines.append(f"ops.wait_tensor({result.name}.view(-1))")
            self.emit(f"{result.name} - 1", result.rows)
        elif how == 2 and result.rows > 1:
            self.emit(f"ops.wait_tensor({result.name}[1:])", result.rows - 1)
            self.emit(f"{result.name} + 0.5", result.rows)
        else:
            self.emit(f"ops.wait_tensor({result.name})", result.rows)


@dataclass(frozen=True, slots=True)
class _Call:
    text: str
    rows: Callable[[int], int]
    divides: bool = False


def _all_to_all(ranks: int) -> _Call:
    sizes = "[{rows}] * " + str(ranks)
    return _Call(f"ops.all_to_all_single({{}}, {sizes}, {sizes}, group)", lambda rows: rows, divides=True)


def _uneven_all_to_all(ranks: int) -> _Call:
    """Rank 0 sends all but a row to itself, and the next one to the next: as many rows as each has, in other
    parts.
    """
    given = f"[{{rows}} * {ranks} - {ranks - 1} if k == rank else 1 for k in range({ranks})]"
    return _Call(f"ops.all_to_all_single({{}}, {given}, {given}, group)", lambda rows: rows, divides=True)


_CALLS: dict[str, Callable[[int], _Call]] = {
    "all_reduce": lambda n: _Call('ops.all_reduce({}, "sum", group)', lambda rows: rows),
    "all_gather": lambda n: _Call(f"ops.all_gather_into_tensor({{}}, {n}, group)", lambda rows: rows * n),
    "reduce_scatter": lambda n: _Call(
        f'ops.reduce_scatter_tensor({{}}, "sum", {n}, group)', lambda rows: rows // n, divides=True
    ),
    "all_to_all": _all_to_all,
    "uneven_all_to_all": _uneven_all_to_all,
    "all_gather_into_given": lambda n: _Call(
        f"ops.all_gather_into_tensor_out({{}}, {n}, group, out=INTO)", lambda rows: rows * n
    ),
    "broadcast": lambda n: _Call("ops.broadcast({}, 1, group)", lambda rows: rows),
    "all_gather_coalesced": lambda n: _Call(
        f"ops.all_gather_into_tensor_coalesced({{}}, {n}, group)", lambda rows: rows * n
    ),
    "reduce_scatter_coalesced": lambda n: _Call(
        f'ops.reduce_scatter_tensor_coalesced({{}}, "sum", {n}, group)', lambda rows: rows // n, divides=True
    ),
    "all_reduce_in_place": lambda n: _Call('ops.all_reduce_({}, "sum", group)', lambda rows: rows),
    "broadcast_in_place": lambda n: _Call("ops.broadcast_({}, 1, group)", lambda rows: rows),
    "all_reduce_coalesced": lambda n: _Call('ops.all_reduce_coalesced({}, "sum", group)', lambda rows: rows),
}


def draw(
    seed: int, ranks: int, *, delayed: bool = False, on_streams: bool = False, exchanges: bool = True
) -> Flights:
    """The program of `seed` for so many ranks; `delayed`: for the group that does everything at the wait.

    `on_streams`: what a rank sends and receives is started together, for a stream runs it in order. Without
    `exchanges`, which not every torch has, it sends nothing to one rank alone.
    """
    rng = random.Random(seed)
    columns = rng.choices(COLUMNS, (3, 1))[0]
    rows = rng.choice((ranks * 2, ranks * 4, columns)) if columns == 8 else ranks * 64
    made = _Drawing(rng, ranks, columns, delayed, on_streams)
    shapes = [(rows, columns)] * rng.choice((1, 2))
    for number, shape in enumerate(shapes):
        made.values.append(Value(f"x{number}", shape[0], f"x{number}"))
    steps: list[tuple[Callable[[], None], int]] = [
        (made.unary, 4), (made.binary, 3), (made.product, 3), (made.chain, 4), (made.rows_sum, 1),
        (made.update, 2),
        (made.functional_update, 2), (made.part, 1), (made.transpose, 1), (made.mutate_input, 1), (made.start,
        2),
        (made.wait, 3), (made.ring, int(exchanges)),
    ]  # fmt: skip
    whole = delayed or rng.random() < 0.85
    if whole:
        steps.append((made.branch, 1))
    else:
        steps.append((lambda: made.lines.append("torch._dynamo.graph_break()"), 1))
    made.chain()
    for _ in range(rng.randrange(4, 12)):
        rng.choices([step for step, _ in steps], [weight for _, weight in steps])[0]()
    left = rng.random() < 0.25
    while made.pending and not left:
        made.wait()
    results = [value.name for value in made.values if not value.name.startswith("x")]
    kept = results[-1:] + rng.sample(results[:-1], min(len(results) - 1, rng.randrange(4)))
    flying = [value.name for value, _ in made.pending]
    returned = [*kept, *flying]
    names = ", ".join([f"x{number}" for number in range(len(shapes))] + ["w"])
    body = "\n".join(f"    {line}" for line in (*made.lines, f"return ({', '.join(returned)},)"))
    return Flights(
        seed=seed,
        ranks=ranks,
        source=f"def f({names}):\n{body}\n",
        inputs=(*shapes, (columns, columns)),
        unwaited=tuple(range(len(kept), len(returned))),
        collectives=made.collectives,
        whole=whole,
        dynamic=rng.random() < 0.15,
    )
