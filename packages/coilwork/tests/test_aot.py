"""Models that are exported, loaded and called: equal to the compiled model to the bit, or refused."""

from __future__ import annotations

import copy
import platform
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.utils import _pytree as pytree

import coilwork
from coilwork.cli import main
from coilwork_aot import InputError, LoadedModel, PackageError, TargetError, load, read_manifest
from coilwork_aot.archive import Archive, read_headers
from coilwork_aot.exporting import Entry
from coilwork_aot.loading import load_archive
from coilwork_frontend.errors import ExportError

DIM = torch.export.Dim("b", min=2, max=64)


class Model(torch.nn.Module):
    """Nested inputs and results, keyword arguments, tied weights, a buffer that is written to, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.tied = self.linear.weight
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("scratch", torch.ones(4), persistent=False)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor, *, mask: Any = None, scale: float = 2.0) -> Any:
        self.seen.add_(x.sum(0))
        y = self.linear(x) * scale + self.scratch + torch.tensor([1.0, 2.0, 3.0, 4.0])
        if mask is not None:
            y = y * mask["keep"]
        return {"y": y.relu(), "rest": [x.view(-1), 3, None, y.shape[0]]}, self.seen


def make_inputs(rows: int) -> tuple[torch.Tensor, dict[str, Any]]:
    return torch.randn(rows, 4), {"mask": {"keep": torch.rand(rows, 4)}, "scale": 2.0}


@dataclass(frozen=True)
class Exported:
    model: Model
    path: Path
    digest: str


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The model with static and with open sizes, as two variants of one entry point."""
    torch.manual_seed(0)
    model = Model().eval()
    folder = tmp_path_factory.mktemp("packages")
    x, rest = make_inputs(5)
    shapes = {"x": {0: DIM}, "mask": {"keep": {0: DIM}}, "scale": None}
    entries = {
        "forward": [
            Entry(model=model, args=(x,), kwargs=rest),
            Entry(model=model, args=(x,), kwargs=rest, dynamic_shapes=shapes),
        ]
    }
    digest = coilwork.export(entries, path=folder / "a", name="sample")
    return Exported(model, folder / "a", digest)


@pytest.fixture
def loaded(exported: Exported) -> LoadedModel:
    return coilwork.load(exported.path, digest=exported.digest)


def equal(one: Any, other: Any) -> bool:
    leaves, spec = pytree.tree_flatten(one)
    others, other_spec = pytree.tree_flatten(other)
    return spec == other_spec and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(leaves, others, strict=True)
    )


def test_results_and_state_are_those_of_the_compiled_model(exported: Exported, loaded: LoadedModel) -> None:
    compiled = torch.compile(copy.deepcopy(exported.model), backend="coilwork", options={"strict": True})
    for rows in (5, 5, 9):
        x, rest = make_inputs(rows)
        with torch.no_grad():
            wanted = compiled(x, **rest)
        assert equal(loaded(x, **rest), wanted)
    assert torch.equal(loaded.state_dict()["seen"], wanted[1])


def test_the_state_dict_is_the_modules(exported: Exported, loaded: LoadedModel) -> None:
    state = loaded.state_dict()
    assert [*state] == [*exported.model.state_dict()]
    assert all(torch.equal(state[name], value) for name, value in exported.model.state_dict().items())
    assert state["tied"] is state["linear.weight"]
    assert {name for name, _ in loaded.named_buffers()} == {"seen", "scratch"}
    values = {name: torch.zeros_like(value) for name, value in state.items()}
    loaded.load_state_dict(values)
    x, rest = make_inputs(5)
    assert torch.allclose(loaded(x, **rest)[1], x.sum(0))


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for path in files:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU()).eval()
        coilwork.export(model, (torch.ones(2, 3),), path=path, options={"cache": False})
    assert files[0].read_bytes() == files[1].read_bytes()


def test_loading_starts_no_process_and_two_models_are_apart_or_share(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process is started"))
    first, second = load(exported.path), load(exported.path)
    shared = load(exported.path, share=first)
    x, rest = make_inputs(5)
    assert equal(first(x, **rest)[0], second(x, **rest)[0])
    first(x, **rest)
    assert shared.state_dict()["seen"] is first.state_dict()["seen"]
    assert not torch.equal(first.state_dict()["seen"], second.state_dict()["seen"])


CALLS: dict[str, list[Callable[[LoadedModel], Any]]] = {
    "nesting": [
        lambda m: m(torch.ones(5, 4)),
        lambda m: m(torch.ones(5, 4), mask=torch.ones(5, 4), scale=2.0),
        lambda m: m(torch.ones(5, 4), torch.ones(5, 4)),
    ],
    "fixed-value": [lambda m: m(torch.ones(5, 4), mask={"keep": torch.ones(5, 4)}, scale=3.0)],
    "no-tensor": [lambda m: m([1.0], mask={"keep": torch.ones(5, 4)}, scale=2.0)],
    "dtype": [lambda m: m(torch.ones(5, 4).double(), mask={"keep": torch.ones(5, 4)}, scale=2.0)],
    "device": [lambda m: m(torch.ones(5, 4, device="meta"), mask={"keep": torch.ones(5, 4)}, scale=2.0)],
    "shape": [
        lambda m: m(torch.ones(5, 3), mask={"keep": torch.ones(5, 4)}, scale=2.0),
        lambda m: m(torch.ones(5), mask={"keep": torch.ones(5, 4)}, scale=2.0),
        lambda m: m(torch.ones(6, 4), mask={"keep": torch.ones(7, 4)}, scale=2.0),
        lambda m: m(torch.ones(1, 4), mask={"keep": torch.ones(1, 4)}, scale=2.0),
        lambda m: m(torch.ones(65, 4), mask={"keep": torch.ones(65, 4)}, scale=2.0),
    ],
}


@pytest.mark.parametrize("code", CALLS)
def test_other_inputs_are_refused_by_name(code: str, loaded: LoadedModel) -> None:
    for call in CALLS[code]:
        with pytest.raises(InputError) as caught:
            call(loaded)
        assert caught.value.code == code
    assert not loaded.state_dict()["seen"].any()


def test_inputs_in_other_strides_are_copied(loaded: LoadedModel) -> None:
    x, rest = make_inputs(5)
    wanted = loaded(x, **rest)[0]["y"]
    assert torch.equal(loaded(x.t().contiguous().t(), **rest)[0]["y"], wanted)


def test_thousands_of_damaged_packages_are_refused_and_leave_no_trace(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data, chance = exported.path.read_bytes(), random.Random(1)
    codes = set()
    for _ in range(1500):
        damaged = bytearray(data)
        kind = chance.randrange(4)
        at = chance.randrange(len(data))
        if kind == 0:
            damaged[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del damaged[at:]
        elif kind == 2:
            damaged[at : at + 8] = chance.randbytes(8)
        else:
            del damaged[at : at + chance.randrange(1, 64)]
        if damaged == data:
            continue
        with pytest.raises(PackageError) as caught:
            load_archive(Archive(read_headers(damaged, "damaged"), damaged), "damaged")
        codes.add(caught.value.code)
    assert {"wrong-hash", "damaged-header", "truncated"} <= codes
    assert not [*tmp_path.iterdir()]


def test_packages_for_others_are_refused(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    def code(**settings: Any) -> str:
        with pytest.raises((PackageError, TargetError)) as caught:
            load(exported.path, **settings)
        return str(caught.value.code)

    assert code(device="xpu") == "wrong-device"
    assert code(digest="0" * 64) == "wrong-digest"
    assert code(weights={"a": torch.ones(1)}) == "wrong-state"
    with monkeypatch.context() as patch:
        patch.setattr("coilwork_aot.loading.read_cpu_features", frozenset)
        assert code() == "missing-features"
    with monkeypatch.context() as patch:
        patch.setattr("platform.machine", lambda: "riscv64")
        assert code() == "wrong-architecture"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.14.0")
        assert code() == "torch-version"
    monkeypatch.setattr("coilwork_aot.loading.runtime_version", "0.2.0")
    assert code() == "runtime-version"


def test_a_package_with_an_operator_that_is_not_imported_is_refused(tmp_path: Path) -> None:
    library = torch.library.Library("coilwork_gone", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
    path = tmp_path / "model.cw"

    class Doubling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.ops.coilwork_gone.double(x) + 1

    coilwork.export(Doubling(), (torch.ones(3),), path=path)
    assert torch.equal(load(path)(torch.ones(3)), torch.full((3,), 3.0))
    library._destroy()
    # this process still knows the operator
    command = [sys.executable, "-c", f"from coilwork_aot import load; load({str(path)!r})"]
    told = subprocess.run(command, capture_output=True, text=True).stderr
    assert "TargetError[missing-operator]" in told and "coilwork_gone.double" in told


def test_sizes_that_data_decide_are_exported(tmp_path: Path) -> None:
    class Chosen(torch.nn.Module):
        def forward(self, x: torch.Tensor, counts: torch.Tensor) -> Any:
            first, second = counts.tolist()
            torch._check(first + second == x.shape[0])
            parts = x.split([first, second])
            return torch.cat([parts[0] * 2, parts[1] + 1]), x[x.sum(1) > 0].sum(0)

    x, counts = torch.randn(6, 4), torch.tensor([2, 4])
    coilwork.export(Chosen(), (x, counts), path=tmp_path / "model.cw")
    model = load(tmp_path / "model.cw")
    for sizes in (counts, torch.tensor([5, 1])):
        torch.testing.assert_close(model(x, sizes), Chosen()(x, sizes))


def test_an_unknown_entry_point_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(PackageError) as caught:
        loaded.entry("prefill")
    assert caught.value.code == "unknown-entry"


def test_weights_come_from_elsewhere_for_a_model_on_meta(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh()).eval()
        inputs = (torch.empty(2, 3),)
    coilwork.export(model, inputs, path=tmp_path / "p", target="x86-64-avx2")
    manifest = read_manifest(tmp_path / "p")
    assert "weights.safetensors" not in manifest.records
    with pytest.raises(PackageError) as caught:
        load(tmp_path / "p")
    assert caught.value.code == "missing-weights"
    real = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh()).eval()
    save_file(real.state_dict(), tmp_path / "w.safetensors")
    x = torch.randn(2, 3)
    for weights in (real.state_dict(), tmp_path / "w.safetensors"):
        assert torch.allclose(load(tmp_path / "p", weights=weights)(x), real(x), atol=1e-6)


def test_one_graph_is_compiled_called_and_saved(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sigmoid()).eval())
    x = torch.randn(4, 3)
    model = coilwork.standalone_compile(graph, [x])
    model.save(tmp_path / "g")
    assert torch.allclose(model(x), graph(x), atol=1e-6)
    assert torch.equal(model.load(tmp_path / "g")(x), model(x))


def test_no_kernel_is_loaded_if_weights_are_wrong(
    tmp_path: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(exported.path.read_bytes())
    data[data.index(exported.model.linear.weight.detach().numpy().tobytes())] ^= 1
    (tmp_path / "p").write_bytes(data)
    touched: list[object] = []
    monkeypatch.setattr("coilwork_runtime.Builder.load_library", lambda *given: touched.append(given))
    with pytest.raises(PackageError) as caught:
        load(tmp_path / "p")
    assert caught.value.code == "wrong-hash" and not touched


def test_what_no_package_holds_is_refused(tmp_path: Path) -> None:
    class Resizing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.t_()
            return x + 1

    alone: Any = torch.ones(2)
    cases = {
        "unknown-target": lambda: coilwork.export(
            torch.nn.ReLU(), (torch.ones(2),), path=tmp_path, target="z"
        ),
        "no-cross-compiler": lambda: coilwork.export(
            torch.nn.ReLU(), (torch.ones(2),), path=tmp_path, target="aarch64-neon"
        ),
        "not-exportable": lambda: coilwork.export(torch.nn.ReLU(), (), path=tmp_path),
        "wrong-arguments": lambda: coilwork.export(torch.nn.ReLU(), alone, path=tmp_path),
        "no-target": lambda: coilwork.export(torch.nn.ReLU(), (torch.ones(2),), path=tmp_path, target=[]),
    }
    for code, call in cases.items():
        with pytest.raises(ExportError) as caught:
            call()
        assert caught.value.code == code
    with pytest.raises(ExportError):
        coilwork.export(Resizing(), (torch.ones(2, 3),), path=tmp_path)
    with pytest.raises(ExportError) as caught:
        coilwork.export(torch.nn.ReLU(), (torch.ones(2, device="meta"),), path=tmp_path)
    assert caught.value.code == "no-target"


CROSS_COMPILER = """#!/bin/sh
for word; do
    case $word in
        -dumpmachine) echo aarch64-linux-gnu; exit;;
        -lmvec) echo there is none >&2; exit 1;;
    esac
done
exec g++ "$@"
"""


def test_a_compiler_for_another_machine_makes_a_package_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is what the compiler says. This one builds for the machine that it runs on all the same."""
    compiler = tmp_path / "cross-g++"
    compiler.write_text(CROSS_COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    model, x = torch.nn.GELU(), torch.randn(77)
    for target in ("aarch64", "aarch64-neon"):
        coilwork.export(model, (x,), path=tmp_path / target, target=target)
    (variant,) = read_manifest(tmp_path / "aarch64").entries["forward"]
    facts = variant.target
    assert (facts.name, facts.machine, facts.features) == ("aarch64-neon", "aarch64", ("asimd",))
    assert (tmp_path / "aarch64").read_bytes() == (tmp_path / "aarch64-neon").read_bytes()
    if platform.machine() == "x86_64":
        with pytest.raises(TargetError) as caught:
            load(tmp_path / "aarch64")
        assert caught.value.code == "wrong-architecture"
        with pytest.raises(ExportError) as refused:
            coilwork.export(model, (x,), path=tmp_path / "x86", target="x86-64-v3")
        assert refused.value.code == "no-cross-compiler"
    # what it has built is nothing for this machine
    monkeypatch.delenv("CXX")
    coilwork.export(model, (x,), path=tmp_path / "here")
    assert torch.allclose(load(tmp_path / "here")(x), model(x), atol=1e-6)


def test_the_command_exports_and_inspects(tmp_path: Path, exported: Exported) -> None:
    (tmp_path / "m.py").write_text("import torch\nnet = torch.nn.Tanh()\nnet_inputs = (torch.ones(3),)\n")
    output = str(tmp_path / "p")
    done = CliRunner().invoke(main, ["export", f"{tmp_path}/m.py:net", "--tune", "-o", output])
    assert done.exit_code == 0, done.output
    assert torch.allclose(load(output)(torch.ones(3)), torch.ones(3).tanh())
    shown = CliRunner().invoke(main, ["inspect", str(exported.path)])
    assert shown.exit_code == 0 and "forward on cpu" in shown.output
    assert CliRunner().invoke(main, ["inspect", f"{tmp_path}/m.py"]).exit_code == 1
    assert CliRunner().invoke(main, ["export", "m", "-o", output]).exit_code == 2
