"""Matrix products that the native executor hands to cuBLASLt: descriptors, what is kept per shape, and what
ATen does instead.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_assembly import CARVE, POOL, Assembly, u8
from stub_products import StubProducts
from torch.nn import functional

from coilwork_cache import MemoryStore
from coilwork_runtime import ExecutorUnavailableError, ProductLibrary, ProgramBytesError, load_native
from coilwork_runtime.executor import native_program as program_module
from coilwork_runtime.executor import vendor_libraries
from coilwork_runtime.executor.native_program import NativeProgram
from coilwork_runtime.torch_compat import get_product_settings

REDUCED = 0b11110


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> StubProducts:
    return StubProducts(tmp_path_factory.mktemp("products"))


@pytest.fixture(autouse=True)
def as_it_was(stub: StubProducts) -> Iterator[None]:
    yield
    for name in ("no_algorithm", "fail_with", "workspace_bytes"):
        stub.set(name, 0)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


def load(
    store: MemoryStore, stub: StubProducts, data: bytes, settings: Callable[[], int] = lambda: REDUCED
) -> NativeProgram:
    def no_fallback() -> Callable[[list[Any]], Any]:
        raise AssertionError("no fallback is needed")

    library = ProductLibrary(path=str(stub.path), device="cpu", settings=settings)
    return load_native(data, launchers={}, constants={}, fallback=no_fallback, store=store, products=library)


def _number(value: float) -> bytes:
    return u8(4) + u8(value) if isinstance(value, bool) else u8(5) + struct.pack("<d", value)


IMPLEMENTS = {
    "aten.mm.out": "product",
    "aten.addmm.out": "product",
    "aten.bmm.out": "batched product",
    "aten.baddbmm.out": "batched product",
    "aten._addmm_activation.out": "activated product",
}


def one(
    target: str,
    operands: int,
    *shape: int,
    dtype: str = "float32",
    kwargs: dict[str, float] | None = None,
    implements: str | None = None,
) -> bytes:
    """y = target(x0, x1, ..), y of this shape, which says what it implements."""
    asm = Assembly("net")
    names = [f"x{k}" for k in range(operands)]
    for name in names:
        asm.input(name)
    asm.alloc("y", asm.layout(*shape, dtype=dtype))
    scales = [(name, _number(value)) for name, value in (kwargs or {}).items()]
    said = IMPLEMENTS.get(target, "") if implements is None else implements
    asm.call(target, [asm.ref(name) for name in names], kwargs=scales, out=[("out", "y")], implements=said)
    return asm.returns("y")


def both(
    store: MemoryStore, stub: StubProducts, data: bytes, *inputs: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """The result, and how many products the library did."""
    program, before = load(store, stub, data), stub.number("products")
    (y,) = program.call(list(inputs))
    done = stub.number("products") - before
    counters = program.counters()
    assert (counters["products"], counters["refused_products"]) == (done, 1 - done)
    return y, done


@pytest.mark.parametrize("first", ["rows", "columns", "wide"])
@pytest.mark.parametrize("second", ["rows", "columns", "wide"])
@pytest.mark.parametrize("sizes", [(3, 5, 4), (1, 5, 4), (3, 1, 4), (3, 5, 1), (1, 1, 1)])
def test_products_of_operands_of_any_layout_are_right(
    stub: StubProducts, store: MemoryStore, first: str, second: str, sizes: tuple[int, int, int]
) -> None:
    def laid_out(rows: int, columns: int, how: str) -> torch.Tensor:
        if how == "columns":
            return torch.randn(columns, rows).T
        return torch.randn(rows, columns + 3)[:, :columns] if how == "wide" else torch.randn(rows, columns)

    m, k, n = sizes
    a, b = laid_out(m, k, first), laid_out(k, n, second)
    y, done = both(store, stub, one("aten.mm.out", 2, m, n), a, b)
    assert done == 1
    torch.testing.assert_close(y, a @ b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_and_a_bias(stub: StubProducts, store: MemoryStore, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    a, b = torch.randn(6, 3, 5, dtype=dtype), torch.randn(6, 4, 5, dtype=dtype).mT
    y, done = both(store, stub, one("aten.bmm.out", 2, 6, 3, 4, dtype=name), a, b)
    assert done == 1
    torch.testing.assert_close(y, torch.bmm(a, b))
    every, row = torch.randn(1, 5, 4, dtype=dtype).expand(6, 5, 4), torch.randn(4, dtype=dtype)
    y, done = both(store, stub, one("aten.bmm.out", 2, 6, 3, 4, dtype=name), a, every)
    assert done == 1
    torch.testing.assert_close(y, torch.bmm(a, every))
    data = one("aten.addmm.out", 3, 3, 4, dtype=name, kwargs={"beta": 1.0, "alpha": 1.0})
    y, done = both(store, stub, data, row, a[0], b[0])
    assert done == 1
    torch.testing.assert_close(y, torch.addmm(row, a[0], b[0]))


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activated_products_are_right_with_and_without_a_bias(
    stub: StubProducts, store: MemoryStore, dtype: torch.dtype, beta: float, gelu: bool
) -> None:
    """Without `beta` nothing is read of what would be added."""
    name = str(dtype).removeprefix("torch.")
    a, b = torch.randn(6, 5, dtype=dtype), torch.randn(5, 4, dtype=dtype)
    row = torch.randn(4, dtype=dtype) if beta else torch.full((4,), float("nan"), dtype=dtype)
    kwargs = {"beta": beta, "alpha": 1.0, "use_gelu": gelu}
    y, done = both(
        store, stub, one("aten._addmm_activation.out", 3, 6, 4, dtype=name, kwargs=kwargs), row, a, b
    )
    assert done == 1
    sums = torch.addmm(row, a, b, beta=beta).double()
    wanted = functional.gelu(sums, approximate="tanh") if gelu else sums.relu()
    torch.testing.assert_close(y.double(), wanted, rtol=2e-2, atol=2e-2)
    plain, done = both(
        store, stub, one("aten.addmm.out", 3, 6, 4, dtype=name, kwargs={"beta": beta}), row, a, b
    )
    assert done == 1 and (plain < 0).any() and not torch.equal(plain, y)


def test_an_activation_of_no_known_kind_is_refused(
    stub: StubProducts, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor_libraries, "_RELU", 7)
    activated = one(
        "aten._addmm_activation.out", 3, 6, 4, kwargs={"beta": 1.0, "alpha": 1.0, "use_gelu": False}
    )
    with pytest.raises(ProgramBytesError, match="activation of no known kind"):
        load(store, stub, activated)


def refused() -> Iterator[tuple[str, bytes, tuple[torch.Tensor, ...], torch.Tensor]]:
    a, b = torch.randn(4, 6), torch.randn(6, 4)
    mm = one("aten.mm.out", 2, 4, 4)
    yield "strided", mm, (torch.randn(8, 12)[::2, ::2], b), torch.empty(0)
    yield "double", one("aten.mm.out", 2, 4, 4, dtype="float64"), (a.double(), b.double()), torch.empty(0)
    yield "empty", one("aten.mm.out", 2, 4, 4), (torch.randn(4, 0), torch.randn(0, 4)), torch.zeros(4, 4)
    yield "matrix as bias", one("aten.addmm.out", 3, 4, 4), (torch.randn(4, 4), a, b), torch.empty(0)
    yield "bias between", one("aten.addmm.out", 3, 4, 4), (torch.randn(5)[1:], a, b), torch.empty(0)


REFUSED = list(refused())


@pytest.mark.parametrize(("name", "data", "inputs", "expected"), REFUSED, ids=[one[0] for one in REFUSED])
def test_what_is_out_of_the_ordinary_is_atens(
    stub: StubProducts,
    store: MemoryStore,
    name: str,
    data: bytes,
    inputs: tuple[torch.Tensor, ...],
    expected: torch.Tensor,
) -> None:
    y, done = both(store, stub, data, *inputs)
    assert done == 0
    if not expected.numel():
        expected = torch.addmm(*inputs) if len(inputs) == 3 else inputs[0] @ inputs[1]
    torch.testing.assert_close(y, expected)


def test_scaled_products_are_never_asked_for(stub: StubProducts, store: MemoryStore) -> None:
    program = load(store, stub, one("aten.addmm.out", 3, 4, 4, kwargs={"beta": 0.5}))
    inputs = [torch.randn(4), torch.randn(4, 6), torch.randn(6, 4)]
    (y,) = program.call(list(inputs))
    torch.testing.assert_close(y, torch.addmm(*inputs, beta=0.5))
    assert program.counters()["products"] == program.counters()["refused_products"] == 0


@pytest.mark.parametrize("implements", ["", "convolution", "batched product with something else"])
def test_calls_that_do_not_say_that_they_are_products_are_atens(
    stub: StubProducts, store: MemoryStore, implements: str
) -> None:
    """Whatever operator they call."""
    a, b = torch.randn(4, 6), torch.randn(6, 4)
    program = load(store, stub, one("aten.mm.out", 2, 4, 4, implements=implements))
    (y,) = program.call([a, b])
    torch.testing.assert_close(y, a @ b)
    assert program.counters()["products"] == program.counters()["refused_products"] == 0


def test_a_summand_of_batches_is_atens(stub: StubProducts, store: MemoryStore) -> None:
    inputs = [torch.randn(2, 4, 4), torch.randn(2, 4, 6), torch.randn(2, 6, 4)]
    program = load(store, stub, one("aten.baddbmm.out", 3, 2, 4, 4))
    (y,) = program.call(list(inputs))
    torch.testing.assert_close(y, torch.baddbmm(*inputs))
    assert program.counters()["products"] == program.counters()["refused_products"] == 0


def test_errors_are_atens(stub: StubProducts, store: MemoryStore) -> None:
    program = load(store, stub, one("aten.mm.out", 2, 4, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        program.call([torch.randn(4, 6), torch.randn(5, 4)])


def test_an_algorithm_is_asked_for_once_per_shape(stub: StubProducts, store: MemoryStore) -> None:
    program = load(store, stub, one("aten.mm.out", 2, 8, 8))
    before = stub.number("heuristics")
    for _ in range(3):
        program.call([torch.randn(8, 11), torch.randn(11, 8)])
    assert stub.number("heuristics") == before + 1
    for inner in (12, 13, 12, 11, 13):
        program.call([torch.randn(8, inner), torch.randn(inner, 8)])
    assert stub.number("heuristics") == before + 3
    # another program with the same product
    load(store, stub, one("aten.mm.out", 2, 8, 8)).call([torch.randn(8, 11), torch.randn(11, 8)])
    assert stub.number("heuristics") == before + 3


def test_a_shape_without_an_algorithm_is_atens_from_then_on(stub: StubProducts, store: MemoryStore) -> None:
    stub.set("no_algorithm", 1)
    program, before = load(store, stub, one("aten.mm.out", 2, 9, 9)), stub.number("heuristics")
    a, b = torch.randn(9, 7), torch.randn(7, 9)
    for _ in range(3):
        (y,) = program.call([a, b])
        torch.testing.assert_close(y, a @ b)
    assert stub.number("heuristics") == before + 1
    assert program.counters()["refused_products"] == 3
    # nothing of the attempt is left, as of none before: four things per product that there is, one more while
    # it is chosen
    kept = stub.number("created") - stub.number("destroyed")
    assert kept % 4 == 0


def test_a_product_that_fails_is_done_again_by_aten(stub: StubProducts, store: MemoryStore) -> None:
    stub.set("fail_with", 13)
    a, b = torch.randn(4, 6), torch.randn(6, 4)
    y, done = both(store, stub, one("aten.mm.out", 2, 4, 4), a, b)
    assert done == 0
    torch.testing.assert_close(y, a @ b)


def test_what_torch_says_about_precision(stub: StubProducts, store: MemoryStore) -> None:
    said = [0]
    program = load(store, stub, one("aten.mm.out", 2, 5, 5), lambda: said[0])
    half = load(store, stub, one("aten.mm.out", 2, 5, 5, dtype="bfloat16"), lambda: said[0])
    a, b = torch.randn(5, 6), torch.randn(6, 5)

    def asked(bits: int, which: NativeProgram) -> tuple[int, int]:
        said[0] = bits
        dtype = torch.float32 if which is program else torch.bfloat16
        which.call([a.to(dtype), b.to(dtype)])
        return stub.number("last_compute"), stub.number("last_mask")

    assert asked(0, program) == (68, 7)
    assert asked(1, program) == (77, 7)
    assert asked(0b00000, half) == (68, 0)
    assert asked(0b10000, half) == (68, 2)
    assert asked(0b11000, half) == (68, 7)
    before = stub.number("products")
    asked(-1, program)
    assert stub.number("products") == before
    assert program.counters()["refused_products"] == 1


def test_products_follow_torchs_settings() -> None:
    assert get_product_settings() in (REDUCED, REDUCED | 1)
    matmul = torch.backends.cuda.matmul
    try:
        matmul.allow_bf16_reduced_precision_reduction = False
        assert get_product_settings() & 0b01000 == 0
        torch.use_deterministic_algorithms(True)
        assert get_product_settings() == -1
    finally:
        matmul.allow_bf16_reduced_precision_reduction = True
        torch.use_deterministic_algorithms(False)


def test_workspace_comes_from_torch(stub: StubProducts, store: MemoryStore) -> None:
    stub.set("workspace_bytes", 4096)
    a, b = torch.randn(4, 16), torch.randn(16, 4)
    y, done = both(store, stub, one("aten.mm.out", 2, 4, 4), a, b)
    assert done == 1 and stub.number("last_workspace") != 0
    torch.testing.assert_close(y, a @ b)


def test_operands_in_a_pool_need_no_tensors(stub: StubProducts, store: MemoryStore) -> None:
    asm = Assembly("net")
    asm.input("a")
    asm.input("b")
    asm.add(POOL, asm.slot("pool") + asm.layout(256, dtype="uint8"))
    for name, offset in (("t", 0), ("u", 128)):
        asm.add(CARVE, asm.slot(name) + asm.slot("pool") + asm.number(offset) + asm.layout(4, 4) + u8(False))
    asm.call("aten.mm.out", [asm.ref("a"), asm.ref("b")], out=[("out", "t")], implements="product")
    asm.call("aten.mm.out", [asm.ref("t"), asm.ref("t")], out=[("out", "u")], implements="product")
    # an operator that is none of these sees the same memory
    asm.alloc("y", asm.layout(4, 4))
    asm.call("aten.neg.out", [asm.ref("u")], out=[("out", "y")])
    asm.free("t", "u", "pool")
    program = load(store, stub, asm.returns("y"))
    a, b = torch.randn(4, 6), torch.randn(6, 4)
    (y,) = program.call([a, b])
    torch.testing.assert_close(y, -(a @ b @ a @ b))
    assert program.counters()["products"] == 2
    assert stub.alignments()[0] == 16


def test_a_library_that_is_not_there(store: MemoryStore, stub: StubProducts, tmp_path: Path) -> None:
    for path in (str(tmp_path / "libabsent.so"), ""):
        if not path and torch.version.cuda:
            continue
        with pytest.raises(ExecutorUnavailableError, match="cuBLASLt cannot be loaded"):
            load_native(
                one("aten.mm.out", 2, 4, 4),
                launchers={},
                constants={},
                fallback=lambda: lambda args: args,
                store=store,
                products=ProductLibrary(path=path, device="cpu"),
            )


def test_a_library_that_need_not_be_there(store: MemoryStore, tmp_path: Path) -> None:
    library = ProductLibrary(path=str(tmp_path / "libabsent.so"), device="cpu", required=False)
    data = one("aten.mm.out", 2, 4, 4)
    program = load_native(
        data, launchers={}, constants={}, fallback=lambda: lambda args: args, store=store, products=library
    )
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    (found,) = program.call([a, b])
    torch.testing.assert_close(found, a @ b)
    assert program.counters()["products"] == program.counters()["refused_products"] == 0


def test_numbers_are_those_of_the_header() -> None:
    """Where cuBLASLt's header is installed."""
    found = sorted(Path(torch.__file__).parents[1].glob("nvidia/**/cublasLt.h"))
    if not found:
        pytest.skip("no cublasLt.h here")
    header = found[0].read_text(encoding="utf-8")
    ours = (program_module.FOLDER / "interfaces/cublaslt.hpp").read_text(encoding="utf-8")
    pairs = {
        "LAYOUT_BATCH_COUNT": "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT",
        "LAYOUT_BATCH_STRIDE": "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET",
        "DESC_TRANSA": "CUBLASLT_MATMUL_DESC_TRANSA",
        "DESC_TRANSB": "CUBLASLT_MATMUL_DESC_TRANSB",
        "DESC_EPILOGUE": "CUBLASLT_MATMUL_DESC_EPILOGUE",
        "DESC_BIAS_POINTER": "CUBLASLT_MATMUL_DESC_BIAS_POINTER",
        "PREF_MAX_WORKSPACE_BYTES": "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
        "PREF_REDUCTION_SCHEME_MASK": "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK",
        "PREF_MIN_ALIGNMENT_A": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES",
        "PREF_MIN_ALIGNMENT_D": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES",
        "EPILOGUE_BIAS": "CUBLASLT_EPILOGUE_BIAS",
        "EPILOGUE_RELU": "CUBLASLT_EPILOGUE_RELU",
        "EPILOGUE_GELU": "CUBLASLT_EPILOGUE_GELU",
        "REDUCTION_COMPUTE_TYPE": "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE",
    }
    for mine, theirs in pairs.items():
        value = re.search(rf"\b{mine} = (\d+)", ours)
        expected = re.search(rf"\b{theirs} = (\d+)", header)
        assert value and expected and value[1] == expected[1], mine
