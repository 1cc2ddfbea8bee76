"""The rules of the repository's structure hold, and each check catches a planted breach of its rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from architecture import (
    cycles,
    device_names,
    documents,
    layers,
    module_state,
    numbers,
    operator_tables,
    product_readers,
    recognition,
    suppressions,
    text_execution,
    torch_border,
)
from architecture.sources import Source, Violation, read_other_files, read_sources

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A repository as the checks see it: released sources, and the other Python files."""

    root: Path
    sources: Sequence[Source]
    others: Sequence[Source]

    @property
    def everything(self) -> Sequence[Source]:
        return (*self.sources, *self.others)


def read_tree(root: Path) -> Tree:
    return Tree(root=root, sources=read_sources(root), others=read_other_files(root))


def check_names_beside_tests(root: Path) -> list[Violation]:
    """Modules that tests share are imported by bare name, so two packages' cannot be called the same in one
    process.
    """
    first: dict[str, str] = {}
    found = []
    for path in sorted(root.glob("packages/*/tests/*.py")):
        if path.name == "conftest.py" or path.name.startswith("test_"):
            continue
        here = path.relative_to(root).as_posix()
        other = first.setdefault(path.name, here)
        if other != here:
            found.append(Violation(path=here, line=1, message=f"{other} has the same name"))
    return found


Check = Callable[[Tree], list[Violation]]

CHECKS: Mapping[str, Check] = {
    "packages import only those below them": lambda t: layers.check_imports_between_packages(t.sources),
    "the runtime imports only the store": lambda t: layers.check_runtime_imports_only_the_store(t.sources),
    "torch-free packages": lambda t: layers.check_torch_free_packages(t.sources),
    "devices and processes are the runtime's": lambda t: layers.check_who_touches_devices(t.sources),
    "declared packages": lambda t: layers.check_declared_packages(t.root),
    "imports are declared": lambda t: layers.check_imports_are_declared(t.root, t.sources),
    "no inductor": lambda t: torch_border.check_no_inductor(t.sources, t.others),
    "one OutputCode": lambda t: torch_border.check_output_code(t.sources),
    "private torch API": lambda t: torch_border.check_private_api(t.sources),
    "no import cycles": lambda t: cycles.check_no_import_cycles(t.sources),
    "no circles of folders": lambda t: cycles.check_no_folder_cycles(t.sources),
    "no mutable module state": lambda t: module_state.check_no_mutable_module_state(t.sources),
    "numbers of machines": lambda t: numbers.check_numbers(t.sources),
    "no global statements": lambda t: module_state.check_no_global_statements(t.sources),
    "one table of operators": lambda t: operator_tables.check_operator_tables(t.sources),
    "products are recognized once": lambda t: product_readers.check_product_readers(t.sources),
    "attention is recognised once": lambda t: operator_tables.check_attention_names(t.sources),
    "nodes are recognised once": lambda t: recognition.check_recognised_once(t.sources),
    "no names behind lowering": lambda t: recognition.check_names_behind_lowering(t.sources),
    "devices are compared by their owners": lambda t: device_names.check_device_names(t.sources),
    "running text": lambda t: text_execution.check_text_execution(t.sources),
    "nothing hangs on functions": lambda t: text_execution.check_no_glued_attributes(t.sources),
    "no silenced types": lambda t: suppressions.check_no_silenced_types(t.everything),
    "no parked work": lambda t: suppressions.check_no_parked_work(t.everything),
    "names beside tests": lambda t: check_names_beside_tests(t.root),
    "file names": lambda t: suppressions.check_file_names(t.everything),
    "pages name what is there": lambda t: documents.check_documents(t.root),
    "pages have whole sentences": lambda t: documents.check_fragments(t.root),
}


@pytest.fixture(scope="module")
def repository() -> Tree:
    return read_tree(ROOT)


def test_sources_were_found(repository: Tree) -> None:
    assert {source.package for source in repository.sources} == set(layers.ALLOWED)


@pytest.mark.parametrize("name", CHECKS)
def test_each_rule_of_the_architecture_holds(name: str, repository: Tree) -> None:
    violations = CHECKS[name](repository)
    assert not violations, "\n" + "\n".join(map(str, violations))


def test_numbers_are_of_modules_that_are_there(repository: Tree) -> None:
    assert not numbers.find_missing_modules(repository.sources)


# ---- each check catches what it is for
# -------------------------------------------------------------------------

# Rule, file (below packages/), its text, and the line that must be named. `>` marks that line.
PLANTED: Sequence[tuple[str, str, str]] = (
    (
        "numbers of machines",
        "coilwork-triton/src/coilwork_triton/a.py",
        "from typing import Final\n> _SECTORS_US: Final = 2 * 32.0\n",
    ),
    (
        "numbers of machines",
        "coilwork-lowering/src/coilwork_lowering/a.py",
        "FLAG = True\n> LEAST_BYTES = -(1 << 20)\n",
    ),
    (
        "packages import only those below them",
        "coilwork-triton/src/coilwork_triton/a.py",
        "> import coilwork_cpp\n",
    ),
    (
        "packages import only those below them",
        "coilwork-ir/src/coilwork_ir/a.py",
        "def f():\n>     from coilwork_scheduler import x\n",
    ),
    (
        "packages import only those below them",
        "coilwork-cache/src/coilwork_cache/a.py",
        "import importlib\n> importlib.import_module('coilwork.compile_options')\n",
    ),
    (
        "the runtime imports only the store",
        "coilwork-runtime/src/coilwork_runtime/a.py",
        "from coilwork_cache.store import Store\n> from coilwork_cache import LocalStore\n",
    ),
    (
        "torch-free packages",
        "coilwork-scheduler/src/coilwork_scheduler/a.py",
        "def f():\n>     import torch.fx\n",
    ),
    (
        "devices and processes are the runtime's",
        "coilwork-lowering/src/coilwork_lowering/a.py",
        "import torch\ndef f():\n>     return torch.cuda.current_device()\n",
    ),
    (
        "devices and processes are the runtime's",
        "coilwork-cpp/src/coilwork_cpp/a.py",
        "> import subprocess\n",
    ),
    ("imports are declared", "coilwork-ir/src/coilwork_ir/a.py", "> import jinja2\n"),
    *(
        ("devices are compared by their owners", "coilwork-lowering/src/coilwork_lowering/a.py", text)
        for text in (
            "def f(x):\n>     return x.device.type == 'cpu'\n",
            "def f(x):\n>     return 'cuda' != x\n",
            "def f(x):\n>     return x.kind in ('cuda', 'hip')\n",
            "def f(x):\n>     return x.device.startswith('cuda')\n",
            "def f(x):\n>     return x.language == 'triton'\n",
            "def f(x):\n    match x:\n>         case 'cpu':\n            return 1\n",
            "GPU = 'cuda'\ndef f(x):\n>     return x.type == GPU\n",
            "GPUS: Final = ('cuda', 'hip')\ndef f(x):\n>     return x.kind in GPUS\n",
        )
    ),
    ("running text", "coilwork-runtime/src/coilwork_runtime/a.py", "def f(x):\n>     exec(x)\n"),
    ("running text", "coilwork-runtime/src/coilwork_runtime/a.py", "import ast\n> TREE = ast.parse('1')\n"),
    ("running text", "coilwork/src/coilwork/a.py", "def f(x, y):\n    y.eval()\n>     return eval(x)\n"),
    ("running text", "coilwork-frontend/src/coilwork_frontend/a.py", "def f(x):\n>     exec(x)\n"),
    (
        "running text",
        "coilwork-runtime/src/coilwork_runtime/a.py",
        "> from coilwork_runtime.module_loader import execute_module\n",
    ),
    (
        "nothing hangs on functions",
        "coilwork-frontend/src/coilwork_frontend/a.py",
        "def f(x):\n    def g():\n        return x\n\n>     g.boxed = True\n    return g\n",
    ),
    (
        "nothing hangs on functions",
        "coilwork/src/coilwork/a.py",
        "def f(x):\n    return x\n\n\n> setattr(f, 'boxed', True)\n",
    ),
    (
        "nothing hangs on functions",
        "coilwork-runtime/src/coilwork_runtime/a.py",
        "def f(x):\n>     vars(x)['native'] = 1\n",
    ),
    ("no inductor", "coilwork/src/coilwork/a.py", "def f():\n>     from torch._inductor import config\n"),
    ("no inductor", "coilwork/src/coilwork/a.py", "> from torch import _inductor\n"),
    ("no inductor", "coilwork/src/coilwork/a.py", "import torch\n> x = torch._inductor.config\n"),
    ("no inductor", "coilwork/src/coilwork/a.py", "> NAME = 'torch._inductor.config'\n"),
    ("no inductor", "coilwork/tests/test_a.py", "> import torch._inductor.config\n"),
    (
        "one OutputCode",
        "coilwork-wrapper/src/coilwork_wrapper/a.py",
        "> from torch._functorch._aot_autograd.aot_autograd_result import OutputCode\n",
    ),
    (
        "private torch API",
        "coilwork-wrapper/src/coilwork_wrapper/a.py",
        "> from torch._subclasses import FakeTensor\n",
    ),
    (
        "private torch API",
        "coilwork-wrapper/src/coilwork_wrapper/a.py",
        "import torch\nop = torch.ops.aten._softmax\n> x = torch._C._get_tracing_state()\n",
    ),
    ("no mutable module state", "coilwork-ir/src/coilwork_ir/a.py", "__all__ = ['a']\n> TABLE = {}\n"),
    ("no mutable module state", "coilwork-ir/src/coilwork_ir/a.py", "> table: dict[str, int] = {}\n"),
    ("no mutable module state", "coilwork-ir/src/coilwork_ir/a.py", "class A:\n>     seen = set()\n"),
    (
        "no mutable module state",
        "coilwork-ir/src/coilwork_ir/a.py",
        "from typing import Final\n> seen: Final = [i for i in range(3)]\n",
    ),
    (
        "no mutable module state",
        "coilwork-ir/src/coilwork_ir/a.py",
        "import threading\n> here = threading.local()\n",
    ),
    (
        "no mutable module state",
        "coilwork-ir/src/coilwork_ir/a.py",
        "class R:\n    def add(self, x):\n        self.items.append(x)\n\n> REGISTRY = R()\n",
    ),
    (
        "no global statements",
        "coilwork-ir/src/coilwork_ir/a.py",
        "n = 0\ndef f():\n>     global n\n    n = 1\n",
    ),
    (
        "one table of operators",
        "coilwork-scheduler/src/coilwork_scheduler/a.py",
        "> CHEAP = frozenset({'aten.add.Tensor', 'aten.mul.Tensor'})\n",
    ),
    (
        "one table of operators",
        "coilwork-lowering/src/coilwork_lowering/a.py",
        "import torch\naten = torch.ops.aten\n> ORDER = {aten.sort.default: 0, aten.topk.default: 1}\n",
    ),
    (
        "one table of operators",
        "coilwork/src/coilwork/a.py",
        "class A:\n>     names = 'aten::sort aten::topk'.split()\n",
    ),
    (
        "nodes are recognised once",
        "coilwork-runtime/src/coilwork_runtime/a.py",
        "> IS = 'aten.convolution.default'.__eq__\n",
    ),
    (
        "nodes are recognised once",
        "coilwork-lowering/src/coilwork_lowering/a.py",
        "import torch\naten = torch.ops.aten\n> BACKWARD = aten.convolution_backward.default\n",
    ),
    (
        "no names behind lowering",
        "coilwork-scheduler/src/coilwork_scheduler/a.py",
        "def f(x):\n>     return x == 'mkldnn._linear_pointwise.default'\n",
    ),
    (
        "no names behind lowering",
        "coilwork-wrapper/src/coilwork_wrapper/a.py",
        "import torch\n> VIEW = torch.ops.aten.view.default\n",
    ),
    ("no silenced types", "coilwork-ir/src/coilwork_ir/a.py", "> x: int = 'a'  # type: ignore[assignment]\n"),
    ("no parked work", "coilwork-ir/src/coilwork_ir/a.py", "> x = 1  # TODO later\n"),
    ("file names", "coilwork-ir/src/coilwork_ir/utils.py", "> x = 1\n"),
    ("pages name what is there", "coilwork-ir/README.md", "`coilwork_ir`\n> its `gone.py`\n"),
    ("pages name what is there", "coilwork-ir/README.md", "```\n`gone.py`\n```\n> its `rooms/`\n"),
    (
        "pages name what is there",
        "coilwork-ir/README.md",
        "`coilwork_ir/__init__.py`\n> `coilwork_ir.gone.Name`\n",
    ),
    ("pages name what is there", "coilwork-ir/README.md", "[a](pyproject.toml)\n> [a](gone.md#part)\n"),
    ("pages name what is there", "coilwork-ir/README.md", "> another package's `coilwork_cpp/__init__.py`\n"),
    (
        "pages have whole sentences",
        "coilwork-ir/CHANGELOG.md",
        "- It is.\n>   asked of a caller.\n",
    ),
)


def plant(root: Path, files: Mapping[str, str]) -> Tree:
    """A repository of empty packages and the given files (paths below packages/)."""
    for package in layers.ALLOWED:
        folder = root / "packages" / package
        source = folder / "src" / package.replace("-", "_")
        source.mkdir(parents=True)
        (source / "__init__.py").write_text("")
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "{package}"\ndependencies = ["torch>=2.11"]\n'
        )
    for path, text in files.items():
        target = root / "packages" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return read_tree(root)


def unmarked(text: str) -> tuple[str, int]:
    """The text without its `> ` mark, and the number of the line that had it."""
    lines = text.splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if line.startswith("> "))
    lines[number] = lines[number].removeprefix("> ")
    return "".join(lines), number + 1


@pytest.mark.parametrize(("rule", "path", "marked"), PLANTED)
def test_planted_breach_is_named_by_line(rule: str, path: str, marked: str, tmp_path: Path) -> None:
    text, line = unmarked(marked)
    violations = CHECKS[rule](plant(tmp_path, {path: text}))
    assert {(v.path, v.line) for v in violations} == {(f"packages/{path}", line)}, violations


@pytest.mark.parametrize("name", CHECKS)
def test_clean_tree_passes(name: str, tmp_path: Path) -> None:
    clean = """
        from __future__ import annotations
        from collections.abc import Mapping, Sequence
        from types import MappingProxyType
        from typing import TYPE_CHECKING, Final
        from coilwork_ir.intern_table import InternTable
        if TYPE_CHECKING:
            from coilwork_ir import b
        '''Prose may speak of torch._inductor.'''
        __all__ = ["TABLE"]
        TABLE: Final[Mapping[str, int]] = {"a": 1}
        ORDER: "Sequence[int]" = [1, 2]
        FROZEN = MappingProxyType({"a": 1})
        NODES = InternTable()
        def f(x: list[int]) -> list[int]:
            seen = set(x)
            return sorted(seen)
    """
    text = "".join(line.removeprefix("        ") for line in clean.splitlines(keepends=True))
    table = "class InternTable:\n    def put(self, x):\n        self.entries[x] = x\n"
    files = {
        "coilwork-ir/src/coilwork_ir/a.py": text,
        "coilwork-ir/src/coilwork_ir/b.py": "from coilwork_ir.a import f\n",
        "coilwork-ir/src/coilwork_ir/intern_table.py": table,
    }
    assert CHECKS[name](plant(tmp_path, files)) == []


def test_function_local_cycle_is_caught(tmp_path: Path) -> None:
    base = "coilwork-ir/src/coilwork_ir"
    files = {
        f"{base}/a.py": "from coilwork_ir.b import y\n",
        f"{base}/b.py": "def y():\n    from . import c\n",
        f"{base}/c.py": "import coilwork_ir.a\n",
    }
    (violation,) = cycles.check_no_import_cycles(plant(tmp_path, files).sources)
    assert violation.line == 1
    assert (
        violation.message == "import cycle: coilwork_ir.a -> coilwork_ir.b -> coilwork_ir.c -> coilwork_ir.a"
    )


def test_cycle_through_the_package_root_is_caught(tmp_path: Path) -> None:
    base = "coilwork-ir/src/coilwork_ir"
    files = {
        f"{base}/__init__.py": "from coilwork_ir.a import x\n",
        f"{base}/a.py": "from coilwork_ir import z\n",
    }
    assert len(cycles.check_no_import_cycles(plant(tmp_path, files).sources)) == 1


def test_cycle_through_a_submodule_asked_of_its_package_is_caught(tmp_path: Path) -> None:
    base = "coilwork-ir/src/coilwork_ir"
    files = {
        f"{base}/__init__.py": "from coilwork_ir.fx.a import x\n",
        f"{base}/fx/__init__.py": "",
        f"{base}/fx/a.py": "from coilwork_ir import b\n",
        f"{base}/b.py": "",
    }
    (violation,) = cycles.check_no_import_cycles(plant(tmp_path, files).sources)
    assert violation.message == "import cycle: coilwork_ir -> coilwork_ir.fx.a -> coilwork_ir"
    alone = {**files, f"{base}/fx/a.py": "import coilwork_ir.b as b\n"}
    assert cycles.check_no_import_cycles(plant(tmp_path / "alone", alone).sources) == []


def test_circle_of_folders_without_one_of_modules_is_caught(tmp_path: Path) -> None:
    base = "coilwork-ir/src/coilwork_ir"
    files = {
        f"{base}/top.py": "from coilwork_ir.left.a import x\n",
        f"{base}/ground.py": "",
        f"{base}/left/__init__.py": "",
        f"{base}/left/a.py": (
            "import coilwork_ir.ground\n\ndef f():\n    from coilwork_ir.right.deep.b import y\n"
        ),
        f"{base}/left/c.py": "import coilwork_ir.ground\n",
        f"{base}/right/__init__.py": "",
        f"{base}/right/b.py": "from coilwork_ir.left import c\n",
        f"{base}/right/deep/__init__.py": "",
        f"{base}/right/deep/b.py": "y = 1\n",
    }
    planted = plant(tmp_path, files).sources
    assert cycles.check_no_import_cycles(planted) == []
    (violation,) = cycles.check_no_folder_cycles(planted)
    assert (violation.path, violation.line) == (f"packages/{base}/left/a.py", 4)
    assert violation.message == "circle of folders: coilwork_ir.left -> coilwork_ir.right -> coilwork_ir.left"
    apart = {**files, f"{base}/right/b.py": "from coilwork_ir.ground import c\n"}
    assert cycles.check_no_folder_cycles(plant(tmp_path / "apart", apart).sources) == []


def test_circle_of_a_folder_and_a_module_beside_it_is_caught(tmp_path: Path) -> None:
    base = "coilwork-ir/src/coilwork_ir"
    files = {
        f"{base}/part/__init__.py": "",
        f"{base}/part/beside.py": "from coilwork_ir.part.room import nodes\n",
        f"{base}/part/room/__init__.py": "",
        f"{base}/part/room/nodes.py": "",
        f"{base}/part/room/text.py": "from coilwork_ir.part import beside\n",
    }
    planted = plant(tmp_path, files).sources
    assert cycles.check_no_import_cycles(planted) == []
    (violation,) = cycles.check_no_folder_cycles(planted)
    assert violation.message == (
        "circle of folders: coilwork_ir.part.beside -> coilwork_ir.part.room -> coilwork_ir.part.beside"
    )
    below = {
        **files,
        f"{base}/part/beside.py": "from coilwork_ir.part import nodes\n",
        f"{base}/part/nodes.py": "",
    }
    assert cycles.check_no_folder_cycles(plant(tmp_path / "below", below).sources) == []


def test_declaring_a_package_above_is_caught(tmp_path: Path) -> None:
    tree = plant(tmp_path, {})
    project = tmp_path / "packages" / "coilwork-cpp" / "pyproject.toml"
    project.write_text('[project]\ndependencies = [\n  "coilwork-ir>=0.1",\n  "coilwork-runtime>=0.1",\n]\n')
    (violation,) = layers.check_declared_packages(tree.root)
    assert (
        str(violation)
        == "packages/coilwork-cpp/pyproject.toml:4: coilwork-cpp must not depend on coilwork-runtime"
    )


def test_private_api_has_a_module_or_a_room_per_package(tmp_path: Path) -> None:
    text = "from torch._subclasses import FakeTensor\n"
    tree = plant(
        tmp_path,
        {
            "coilwork-ir/src/coilwork_ir/torch_compat.py": text,
            "coilwork/src/coilwork/torch_compat/fakes.py": text,
            "coilwork/src/coilwork/not_torch_compat.py": text,
        },
    )
    (violation,) = torch_border.check_private_api(tree.sources)
    assert violation.path.endswith("/not_torch_compat.py")


def test_owners_may_compare_names_of_devices(tmp_path: Path) -> None:
    text = "def f(x):\n    return x == 'cpu'\n"
    files = {
        "coilwork/src/coilwork/backends.py": text,
        "coilwork-ir/src/coilwork_ir/a.py": text,
        "coilwork-ir/src/coilwork_ir/b.py": "def f(x):\n    return x == 'cpp'\n",
    }
    tree = plant(tmp_path, files)
    assert device_names.check_device_names(tree.sources, ("coilwork.backends", "coilwork_ir.a")) == []
    (found,) = device_names.check_device_names(tree.sources)
    assert found.path.endswith("/a.py")


def test_every_owner_of_names_of_devices_is_there(repository: Tree) -> None:
    modules = {source.module for source in repository.sources}
    assert not device_names.OWNERS.keys() - modules


def test_second_file_with_output_code_is_caught(tmp_path: Path) -> None:
    text = "from torch._functorch._aot_autograd.aot_autograd_result import OutputCode\n"
    tree = plant(tmp_path, {f"coilwork-frontend/src/coilwork_frontend/{name}.py": text for name in "ab"})
    (violation,) = torch_border.check_output_code(tree.sources)
    assert violation.path.endswith("/b.py")


def test_second_module_beside_tests_with_the_same_name_is_caught(tmp_path: Path) -> None:
    names = ("conftest.py", "sample_graphs.py", "test_errors.py")
    tree = plant(
        tmp_path, {f"{package}/tests/{n}": "" for package in ("coilwork-cpp", "coilwork-ir") for n in names}
    )
    (violation,) = check_names_beside_tests(tree.root)
    assert violation.path == "packages/coilwork-ir/tests/sample_graphs.py"


OPERATOR_TABLE = {
    "coilwork-ir/src/coilwork_ir/operators/table.py": (
        "ROWS = (OpInfo('topk'), OpInfo('sort'), OpInfo('gather'), OpInfo('add'))\n"
    ),
    "coilwork-ir/src/coilwork_ir/ops.py": "ROWS = (_op('add'),)\n",
}


def planted_tables(tmp_path: Path, text: str, allowed: Mapping[tuple[str, str], str]) -> list[Violation]:
    """What the check says of `text` beside a table of four operators, one of which is called as a scalar op
    is.
    """
    files = {**OPERATOR_TABLE, "coilwork-lowering/src/coilwork_lowering/a.py": text}
    return operator_tables.check_operator_tables(plant(tmp_path, files).sources, allowed)


@pytest.mark.parametrize(
    "text",
    [
        "CHOOSING = frozenset('topk sort gather'.split())\n",
        "CHOOSING = ('topk', 'sort', *('gather',))\n",
        "CHOOSING: Mapping[str, int] = {'topk': 1, 'sort': 2, 'gather.default': 0}\n",
    ],
)
def test_table_of_bare_names_is_caught(text: str, tmp_path: Path) -> None:
    (violation,) = planted_tables(tmp_path, text, {})
    assert violation.message.startswith("CHOOSING is a table of ATen's operators")


@pytest.mark.parametrize(
    "text",
    [
        "SCALAR = ('add', 'sort', 'topk')\n",
        "PROSE = 'sort before topk and gather, as kernels do'\n",
        "PATTERN = call('aten.sort.default', self=call('aten.topk.default'))\n",
        "COPY = torch.ops.aten.copy_.default\n",
        "def f(x):\n    return x in ('aten.sort', 'aten.topk')\n",
    ],
)
def test_what_is_no_table_of_operators(text: str, tmp_path: Path) -> None:
    assert planted_tables(tmp_path, text, {}) == []


@pytest.mark.parametrize(
    "text",
    [
        "FUSED = 'aten._scaled_dot_product_flash_attention.default'\n",
        "def f(name):\n    return name.startswith('_efficient_attention_')\n",
        "def f(target):\n    return target is torch.ops.aten._scaled_dot_product_cudnn_attention.default\n",
    ],
)
def test_a_name_of_fused_attention_is_caught(text: str, tmp_path: Path) -> None:
    files = {"coilwork-lowering/src/coilwork_lowering/a.py": text}
    (violation,) = operator_tables.check_attention_names(plant(tmp_path, files).sources)
    assert violation.message.endswith("is recognised in coilwork_lowering.ops.attention alone")
    files = {"coilwork-lowering/src/coilwork_lowering/ops/attention.py": text}
    assert operator_tables.check_attention_names(plant(tmp_path / "there", files).sources) == []


def test_allowance_for_a_table_that_is_gone_is_caught(tmp_path: Path) -> None:
    allowed = {("coilwork_lowering.a", "CHOOSING"): "why", ("coilwork_lowering.a", "GONE"): "why"}
    (violation,) = planted_tables(tmp_path, "CHOOSING = ('topk', 'sort', 'gather')\n", allowed)
    assert violation.message.startswith("GONE is no table of operators any more")


PRODUCT_TABLE = "ROWS = (OpInfo('mm', product=Roles()), OpInfo('_int_mm', product=Roles()), OpInfo('dot'))\n"


def planted_readers(tmp_path: Path, text: str, allowed: Mapping[str, str]) -> list[Violation]:
    """What the check says of `text`, a module of the scheduler, beside a table in which two operators
    multiply.
    """
    files = {
        "coilwork-ir/src/coilwork_ir/operators/table.py": PRODUCT_TABLE,
        "coilwork-scheduler/src/coilwork_scheduler/a.py": text,
    }
    table = {product_readers.TABLE: "says which they are"}
    return product_readers.check_product_readers(plant(tmp_path, files).sources, {**table, **allowed})


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x.target == 'aten.mm.default'\n",
        "def f(x):\n    return x.target.startswith('aten._int_mm')\n",
        "def f(name):\n    return name in ('mm', 'dot')\n",
        "def f(x):\n    return x.target is torch.ops.aten.mm.default\n",
        "def f(x):\n    return x.target is aten._int_mm\n",
        "def f(x):\n    match x:\n        case 'aten::mm':\n            return 1\n",
    ],
)
def test_reader_of_a_products_name_is_caught(text: str, tmp_path: Path) -> None:
    found = planted_readers(tmp_path, text, {})
    assert found and all(v.path.endswith("coilwork_scheduler/a.py") for v in found)
    assert all("is named" in v.message for v in found)


@pytest.mark.parametrize(
    "text",
    [
        "'''What becomes of mm.'''\nx = 'a call of aten.mm in words'\n",
        "def f(x):\n    return x.target == 'aten.dot.default' or x.name == 'bmm'\n",
        "def f(node):\n    return isinstance(node, Contraction)\n",
    ],
)
def test_what_names_no_product(text: str, tmp_path: Path) -> None:
    (gone,) = planted_readers(tmp_path, text, {"coilwork_scheduler.gone": "why"})
    assert gone.path == "coilwork_scheduler.gone"


def test_allowance_for_a_reader_that_is_gone_is_caught(tmp_path: Path) -> None:
    allowed = {"coilwork_scheduler.a": "why", "coilwork_scheduler.gone": "why"}
    (violation,) = planted_readers(tmp_path, "MM = 'aten.mm.out'\n", allowed)
    assert violation.path == "coilwork_scheduler.gone"
