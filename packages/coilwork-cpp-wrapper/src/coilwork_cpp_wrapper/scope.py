"""Names and sizes of one emitted C++ function, and how the emission refuses.

Index expressions become C++ over `int64_t` with the floor semantics of the IR. `Scope` knows the variables of
a function and what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Final, NoReturn

from coilwork_cpp_wrapper.view_plan import Place, ViewPlan
from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import (
    Add,
    Const,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Sym,
    as_expr,
    ceildiv,
    floordiv,
    get_node,
    is_subtracted,
    maximum,
    minimum,
    mod,
    provably_nonneg,
    provably_positive,
)
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.program.nodes import Program
from coilwork_ir.streams import is_host
from coilwork_ir.syntax.cpp import Binary, Braces, Call, Code, Declare, Name, integer
from coilwork_runtime.manifest.kernel_manifest import KernelManifest
from coilwork_runtime.manifest.size_bytecode import Op, SizeBytecode

# ---- sizes ----


_COMBINED: Final[Mapping[Op, Callable[[Expr, Expr], Expr]]] = MappingProxyType(
    {
        Op.ADD: lambda a, b: a + b,
        Op.SUBTRACT: lambda a, b: a - b,
        Op.MULTIPLY: lambda a, b: a * b,
        Op.FLOOR_DIVIDE: floordiv,
        Op.MODULO: mod,
        Op.CEIL_DIVIDE: ceildiv,
        Op.MINIMUM: minimum,
        Op.MAXIMUM: maximum,
    }
)


def index_code(expr: Expr, name_of: Callable[[Expr], str]) -> Code:
    """`expr` as C++; `name_of` gives the identifier of a symbol.

    C++ rounds quotients towards zero and remainders follow; where neither operand can be negative that is
    the floor, and elsewhere `rt::floordiv` and `rt::mod` correct it.
    """
    match get_node(expr):
        case Const(value):
            return integer(value)
        case Sym(_, symbol):
            return Name(name_of(symbol))
        case Add(terms):
            return _sum(terms, name_of)
        case Mul(factors):
            return _chain("*", [index_code(f, name_of) for f in factors])
        case FloorDiv(left, right):
            return _quotient("/", "rt::floordiv", left, right, name_of)
        case Mod(left, right):
            return _quotient("%", "rt::mod", left, right, name_of)
        case Min(operands):
            return _nest("rt::least", [index_code(o, name_of) for o in operands])
        case Max(operands):
            return _nest("rt::greatest", [index_code(o, name_of) for o in operands])


def make_braces(values: Iterable[Expr], name_of: Callable[[Expr], str]) -> Code:
    """Sizes or strides."""
    return Braces(tuple(index_code(v, name_of) for v in values))


def _sum(terms: tuple[Expr, ...], name_of: Callable[[Expr], str]) -> Code:
    """Terms with a negative coefficient are subtracted."""
    result = index_code(terms[0], name_of)
    for term in terms[1:]:
        if is_subtracted(term):
            result = Binary("-", result, index_code(-term, name_of))
        else:
            result = Binary("+", result, index_code(term, name_of))
    return result


def _quotient(operator: str, function: str, left: Expr, right: Expr, name_of: Callable[[Expr], str]) -> Code:
    operands = (index_code(left, name_of), index_code(right, name_of))
    if provably_nonneg(left) and provably_positive(right):
        return Binary(operator, *operands)
    return Call(function, operands)


def _chain(operator: str, parts: list[Code]) -> Code:
    return reduce(lambda left, right: Binary(operator, left, right), parts)


def _nest(function: str, parts: list[Code]) -> Code:
    return reduce(lambda left, right: Call(function, (left, right)), parts)


def read_size_code(code: SizeBytecode, sizes: Sequence[Expr]) -> Expr:
    """Return the expression that `code` computes of a launch's `sizes`.

    Raises:
        EmitError: `cpp-unsupported`, it compares, selects, or reads a compile-time parameter: C++ kernels
            need none.
    """
    stack: list[Expr] = []
    for op, operand in code.steps:
        if op is Op.CONSTANT:
            stack.append(as_expr(operand))
        elif op is Op.SIZE:
            stack.append(sizes[operand])
        elif op in _COMBINED:
            right = stack.pop()
            stack[-1] = _COMBINED[op](stack[-1], right)
        else:
            raise EmitError("cpp-unsupported", f"a kernel's size is computed by {op.name.lower()}")
    return stack[0]


# ---- scope ----


PYTHON_REMEDY = 'options={"wrapper": "python"}'
# What stands before a name in the name of the pointer to its memory.
ADDRESS: Final = "at_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Lookups for one program.

    Attributes:
        name: identifier of a buffer or pool.
        buffer: declaration of a buffer.
        symbol: identifier of a size symbol.
        kernel: what launching a kernel takes.
        entry: name under which a kernel's entry is linked.
        function: identifier of the function that a nested program becomes.
        outer_symbols: size symbols that a nested program uses and its surroundings bind.
        declare: takes the declaration of a C function that is called.
        relay: takes the text of a relay that is called.
        gpu_kernel: the number of a kernel that is launched on a GPU; None for one that is called.
        gpu: the GPU that the program runs on, `"cuda:0"`; empty for a program on the host.
        constants: names of the buffers that are constants.
        views: which names are held as tensors (`view_plan.py`).
        addressed: names whose address has been read.
        number: a number no other instruction has, for the names of temporaries.
    """

    name: Callable[[str], str]
    buffer: Callable[[str], Buffer]
    symbol: Callable[[Expr], str]
    kernel: Callable[[str], KernelManifest]
    entry: Callable[[str], str]
    function: Callable[[Program], str]
    outer_symbols: Callable[[Program], tuple[Expr, ...]]
    declare: Callable[[str], None]
    relay: Callable[[str], None]
    gpu_kernel: Callable[[str], int | None]
    gpu: str
    constants: frozenset[str]
    views: ViewPlan
    addressed: set[str]
    number: int

    def index(self, expr: Expr) -> Code:
        """Return an index expression."""
        return index_code(expr, self.symbol)

    def braces(self, values: Iterable[Expr]) -> Code:
        """Sizes or strides."""
        return make_braces(values, self.symbol)

    def place(self, device: str) -> tuple[Code, ...]:
        """Return the argument that says where memory is; none on the host."""
        return () if is_host(device) else (Call("rt::gpu"),)

    def layout(self, buffer: Buffer) -> tuple[Code, Code]:
        """Shape and strides of `buffer`."""
        return self.braces(buffer.shape), self.braces(buffer.strides)

    def address(self, name: str) -> Name:
        """Return the pointer to the begin of the memory of `name`, which `read_address` declares."""
        return Name(f"{ADDRESS}{self.name(name)}")

    def read_address(self, name: str) -> Iterator[Declare]:
        """Declare the pointer to the memory of `name`, unless that is done."""
        if name in self.addressed:
            return
        self.addressed.add(name)
        value: Code = Call(f"{self.name(name)}.data")
        if name in self.views.bare:
            place = self.views.places[name]
            yield from self.read_address(place.root)
            value = self.address(place.root)
            if place.offset_bytes != as_expr(0):
                value = Binary("+", value, self.index(place.offset_bytes))
        yield Declare("char* const", self.address(name).text, value)

    def see(self, place: Place, buffer: Buffer) -> Code:
        """Return a tensor of the layout of `buffer` in the memory of another name's tensor."""
        root = Name(self.name(place.root))
        if place.is_own:
            offset = self.index(place.offset_bytes)
            return Call("rt::carve", (root, offset, *self.layout(buffer), get_dtype_code(buffer.dtype)))
        if place.elements is None:
            raise AssertionError(f"{buffer.name} is seen as other elements than {place.root} has")
        return Call("rt::view", (root, *self.layout(buffer), self.index(place.elements)))

    def tensor(self, name: str) -> Code:
        """Return a tensor of the layout of `name`: its own, or one that lives until the end of the
        statement.
        """
        if name not in self.views.bare:
            return Name(self.name(name))
        return self.see(self.views.places[name], self.buffer(name))


def get_dtype_code(dtype: DType) -> Code:
    """Return the number that torch gives an element type.

    Raises:
        EmitError: `cpp-unsupported`, torch's C interface does not name it.
    """
    if dtype.category in ("quantized", "bits") or dtype is DType.F4E2M1X2:
        refuse(f"element type {dtype.torch_name}", UNKNOWN, "torch's C interface has no name for it")
    return Call(f"aoti_torch_dtype_{dtype.torch_name}")


def refuse(what: str, origins: tuple[Origin, ...], reason: str, *, node: str = "") -> NoReturn:
    """Raise the error for what the C interface of torch cannot call yet."""
    raise EmitError("cpp-unsupported", what, node=node, origins=origins, reason=reason, remedy=PYTHON_REMEDY)
