"""Every job of this repository. `nox -l` lists them; the README names the two that a newcomer needs.

Environments are made from wheels, never from the source folders, so that what is tested is what would be
released. The environment variable NOX_WHEELHOUSE names a folder of wheels built before (`nox -s build` fills
`dist/`); without it a session builds those that it needs. NOX_LIBRARIES names a folder into which the
session `libraries` has installed torch and Triton: environments link those files instead of unpacking them.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import importlib.util
import json
import os
import random
import re
import shutil
import sys
import tomllib
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent / "devtools"))

from linked_libraries import link_distributions

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).resolve().parent
# The one list of packages is the folder; what cannot read it is held to it by
# `integration_tests/test_package_lists.py`.
PACKAGES = tuple(sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")))
REPORTS = ROOT / ".nox" / "reports"
CONSTRAINTS_FILE = ROOT / "constraints.txt"
CONSTRAINTS = ("-c", str(CONSTRAINTS_FILE))

# Threads that wait give their core away: several sessions run at once, and half of their time went into
# waiting threads.
WHILE_TESTING = {"OMP_WAIT_POLICY": "PASSIVE"}

# What is installed must be what is tested, whatever the shell that starts nox has set.
os.environ.pop("PYTHONPATH", None)
# Bytecode is made of what is imported, when it is: pip would compile all of torch in every environment.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
QUIETLY = ("-q", "--no-compile")
# What takes most of the time of an installation, to unpack and to make bytecode of.
LIBRARIES = ("torch", "triton", "numpy")
# Imports most of what tests import of them.
USE_OF_LIBRARIES = """
import sys
import torch
if sys.platform == "linux":
    import triton.compiler
function = torch.compile(lambda x: (x.sin() + 1).sum(), backend="aot_eager")
function(torch.ones(3, requires_grad=True)).backward()
"""


# ---- the packages and their wheels
# -----------------------------------------------------------------------------


def requirements_of(name: str, *, extras: tuple[str, ...] = ()) -> list[str]:
    """The requirement strings that a package declares, with those of the named extras."""
    project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
    declared = list(project.get("dependencies", []))
    for extra in extras:
        declared += project.get("optional-dependencies", {}).get(extra, [])
    return declared


def distribution_of(requirement: str) -> str:
    """The bare distribution name: `coilwork-ir` of `coilwork-ir[sympy]>=0.1`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return match.group()


def extras_of(requirement: str) -> tuple[str, ...]:
    """The extras that it asks for: `("sympy",)` of `coilwork-ir[sympy]>=0.1`."""
    match = re.match(r"[A-Za-z0-9._-]+\[([^]]*)\]", requirement)
    return tuple(re.findall(r"[\w-]+", match.group(1))) if match is not None else ()


def declared_by(*requested: str) -> list[str]:
    """What the requested packages of ours, and those that they need with the extras that they name, declare
    of others.
    """
    found: dict[str, None] = {}
    pending = list(requested)
    seen = set[str]()
    while pending:
        request = pending.pop()
        name = distribution_of(request)
        if name not in PACKAGES:
            found[request] = None
        elif request not in seen:
            seen.add(request)
            pending += requirements_of(name, extras=extras_of(request))
    return list(found)


def closure(name: str, *, extras: tuple[str, ...] = ()) -> list[str]:
    """The package and those of ours that it needs, directly or through another."""
    found: dict[str, None] = {}
    pending = [name, *map(distribution_of, requirements_of(name, extras=extras))]
    while pending:
        current = pending.pop(0)
        if current in PACKAGES and current not in found:
            found[current] = None
            pending += map(distribution_of, requirements_of(current))
    return list(found)


def third_party(*, extras: tuple[str, ...]) -> list[str]:
    """What all packages together ask of others, each distribution once."""
    by_name: dict[str, str] = {}
    for name in PACKAGES:
        for requirement in requirements_of(name, extras=extras):
            distribution = distribution_of(requirement)
            if distribution not in PACKAGES:
                by_name.setdefault(distribution, requirement)
    return list(by_name.values())


def wheelhouse(session: nox.Session, names: list[str], *, python: str = "python") -> Path:
    """A folder that holds one wheel of each named package: the prepared one, else built here."""
    prepared = os.environ.get("NOX_WHEELHOUSE")
    if prepared:
        return Path(prepared).resolve()
    folder = Path(session.create_tmp()).resolve() / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    offline = ["--no-build-isolation"] if python != "python" and importlib.util.find_spec("hatchling") else []
    sources = [str(ROOT / "packages" / name) for name in names]
    # fmt: off
    session.run(python, "-m", "pip", "wheel", "-q", "--no-deps", *offline, "-w", str(folder), *sources,
                external=True)
    # fmt: on
    return folder


def wheel_in(folder: Path, name: str) -> Path:
    """The one wheel of the package in the folder."""
    wheels = sorted(folder.glob(f"{name.replace('-', '_')}-*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"{folder} holds {len(wheels)} wheels of {name}, wanted one; run `nox -s build`")
    return wheels[0]


def pinned_to_wheels(session: nox.Session, folder: Path, names: list[str]) -> tuple[str, ...]:
    """pip options that let the named packages come from their wheels in the folder and from nowhere else."""
    path = Path(session.create_tmp()) / "wheel_constraints.txt"
    path.write_text("".join(f"{name} @ {wheel_in(folder, name).as_uri()}\n" for name in names))
    return ("-c", str(path), *CONSTRAINTS)


def install_ours(session: nox.Session, *requested: str) -> None:
    """Install packages of ours (with extras, if any) and what they declare into the session's clean
    environment.
    """
    names: list[str] = []
    for request in requested:
        names += [n for n in closure(distribution_of(request), extras=extras_of(request)) if n not in names]
    link_libraries(session, declared_by(*requested))
    folder = wheelhouse(session, names)
    session.install(*QUIETLY, *requested, *pinned_to_wheels(session, folder, names))


def libraries_of(declared: list[str]) -> list[str]:
    """Those of the requirements that are for one of LIBRARIES."""
    return [one for one in declared if distribution_of(one) in LIBRARIES]


def link_libraries(session: nox.Session, declared: list[str]) -> None:
    """Put those of LIBRARIES that are `declared`, and what they need themselves, into the session's
    environment, if NOX_LIBRARIES has them. pip finds them installed.
    """
    shared = os.environ.get("NOX_LIBRARIES")
    wanted = libraries_of(declared)
    if shared and wanted:
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = str(session.run("python", "-c", ask, silent=True)).strip()
        link_distributions(Path(shared), Path(site), wanted)


def use_present_environment(session: nox.Session) -> dict[str, str]:
    """Put our wheels beside the torch of the Python that runs nox; returns the environment variables to run
    with.

    GPU builds of torch differ from machine to machine, so the GPU jobs take the one that is there and only
    add what it lacks, in a folder of their own. Works without a network if hatchling and the third-party
    packages are there.
    """
    if importlib.util.find_spec("torch") is None:
        session.error("this job uses the torch of the Python that runs nox, and it has none")
    site = Path(session.create_tmp()).resolve() / "site"
    shutil.rmtree(site, ignore_errors=True)
    folder = wheelhouse(session, list(PACKAGES), python=sys.executable)
    pip = (sys.executable, "-m", "pip", "install", "-q", "--target", str(site))
    session.run(*pip, "--no-deps", *(str(wheel_in(folder, name)) for name in PACKAGES), external=True)
    missing = [r for r in third_party(extras=("test", "demo")) if not is_installed(distribution_of(r))]
    if missing:
        session.run(*pip, *missing, external=True)
    return {"PYTHONPATH": str(site)}


def is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def report(session: nox.Session) -> list[str]:
    """pytest options that leave a count of the tests where the `tests` session sums them up."""
    return [f"--junitxml={REPORTS / session.name}.xml"]


# ---- the main jobs
# ---------------------------------------------------------------------------------------------


@nox.session
def demo(session: nox.Session) -> None:
    """Compile GPT-2, check it, time it beside eager and Inductor, train a step, hit the cache."""
    install_ours(session, "coilwork[demo]")
    session.run("python", "-m", "coilwork_tools.demo", *session.posargs)


def draw_circumstances() -> dict[str, str]:
    """What must not matter, drawn anew for each run unless it is set: the order of sets, and what freed
    memory holds.
    """
    drawn = {"PYTHONHASHSEED": random.randrange(1, 2**32), "MALLOC_PERTURB_": random.randrange(1, 256)}
    return {name: os.environ.get(name, str(value)) for name, value in drawn.items()}


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Everything: lint, types, architecture, wheels, each package alone, integration. Ends with a summary."""
    shutil.rmtree(REPORTS, ignore_errors=True)
    closing = REPORTS / "closing_line.txt"
    # Last of all, after nox's own messages, so that whoever reads only the end of the log sees the count.
    atexit.register(lambda: print(closing.read_text(), flush=True) if closing.exists() else None)
    # The longest first, so that nothing waits for it alone at the end. The integration tests use two cores
    # by themselves: they are the last, and the packages' tests beside them fill what they leave.
    long = ("coilwork-triton", "coilwork", "coilwork-lowering")
    packages = (*long, *(name for name in PACKAGES if name not in long))
    stages = (
        ("build", "libraries", "lint", "api"),
        (*(f"package({name})" for name in packages), "typecheck", "consumers", "integration"),
    )
    arguments = [word for stage in stages for word in ("--stage", *stage)]
    varied = draw_circumstances()
    session.log("again like this: " + " ".join(f"{name}={value}" for name, value in varied.items()))
    session.run(sys.executable, "devtools/run_sessions.py", "--reports", str(REPORTS), *arguments, env=varied)


@nox.session
def libraries(session: nox.Session) -> None:
    """Installs torch and Triton into the folder NOX_LIBRARIES, from where other sessions link them."""
    folder = os.environ.get("NOX_LIBRARIES")
    if not folder:
        session.error("NOX_LIBRARIES names no folder")
    declared = libraries_of(third_party(extras=("gpu", "test")))
    session.install(*QUIETLY, "--target", folder, *declared, *CONSTRAINTS)
    session.run("python", "-c", USE_OF_LIBRARIES, env={"PYTHONPATH": folder})


@nox.session
@nox.parametrize("name", [nox.param(name, id=name) for name in PACKAGES])
def package(session: nox.Session, name: str) -> None:
    """One package alone: its wheel and what it declares in a clean environment, then its tests on that."""
    imported = name.replace("-", "_")
    # First without the test extra: what the wheel declares must be enough to import it.
    install_ours(session, name)
    where = f"import pathlib, {imported} as m; assert 'site-packages' in pathlib.Path(m.__file__).parts"
    session.run("python", "-I", "-c", where)
    install_ours(session, f"{name}[test]")
    session.run("python", "-m", "pip", "check", silent=True)
    tests_folder = f"packages/{name}/tests"
    command = ("pytest", tests_folder, "-q", "-m", "not gpu", *report(session), *session.posargs)
    session.run(*command, env=WHILE_TESTING)


@nox.session
def alone(session: nox.Session) -> None:
    """Every package alone from its wheel: what of ours it pulls in, its import, its README's program; writes
    docs/packages-alone.md. `-- --beside` takes torch and the like from the Python that runs nox."""
    folder = wheelhouse(session, list(PACKAGES))
    words = ("--wheels", str(folder), "--page", str(ROOT / "docs" / "packages-alone.md"), *session.posargs)
    # with nox's own Python, whose torch `--beside` takes
    session.run(sys.executable, "devtools/packages_alone.py", *words, external=True)


@nox.session(venv_backend="none")
def structure(session: nox.Session) -> None:
    """Sizes of the packages, who imports whom, what the meta-package holds: writes docs/structure.md."""
    session.run(sys.executable, "devtools/structure.py", external=True)


@nox.session
def integration(session: nox.Session) -> None:
    """The CPU integration tests on all wheels together, the architecture test among them."""
    install_ours(session, "coilwork[demo,gpu,redis,test]")
    session.install(*QUIETLY, "hatchling", "pytest-xdist", "vulture", *CONSTRAINTS)
    # fmt: off
    session.run("pytest", "integration_tests", "-q", "-m", "not gpu", "--ignore=integration_tests/consumers",
                "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *report(session), *session.posargs,
                env=WHILE_TESTING)
    # fmt: on


@nox.session
def versions(session: nox.Session) -> None:
    """Test files with one version of torch: `-- 2.11.0`, and packages or files behind it for some. Writes
    docs/torch-versions.md. All of them take hours; interrupted, the same command goes on where it stopped.
    """
    if not session.posargs:
        session.error("wanted: a version of torch, such as 2.11.0")
    version, *wanted = session.posargs
    pins = Path(session.create_tmp()) / "torch_constraints.txt"
    # Triton is the one that this torch asks for
    others = [line for line in CONSTRAINTS_FILE.read_text().splitlines() if not line.startswith(LIBRARIES)]
    pins.write_text("\n".join([*others, f"torch=={version}", ""]))
    folder = wheelhouse(session, list(PACKAGES))
    wheels = [str(wheel_in(folder, name)) for name in PACKAGES]
    session.install(*QUIETLY, *wheels, *third_party(extras=("demo", "gpu", "redis", "test")), "-c", str(pins))
    session.install(*QUIETLY, "hatchling", "vulture", "-c", str(pins))
    program = "devtools/torch_versions.py"
    # what failed stands on the page, too
    session.run("python", program, "run", *wanted, env=WHILE_TESTING, success_codes=[0, 1])
    session.run("python", program, "page")


@nox.session
def opinfo(session: nox.Session) -> None:
    """All operators of torch's own database beside eager: `-- --device cuda` for the GPU, more words go to
    the sweep.

    It takes hours; interrupted, the same command goes on where it stopped (`opinfo_cpu.jsonl`).
    """
    device = "cuda" if "cuda" in session.posargs else "cpu"
    arguments = ["-m", "integration_tests.operators.sweep", "--results", f"opinfo_{device}.jsonl"]
    if "--processes" not in session.posargs:
        cores = os.cpu_count() or 1
        arguments += ["--processes", str(cores if device == "cpu" else max(1, cores // 4))]
    if device == "cuda":
        environment = use_present_environment(session)
        environment["PYTHONPATH"] += os.pathsep + str(ROOT)
        session.run(sys.executable, *arguments, *session.posargs, env=environment, external=True)
        return
    install_ours(session, "coilwork[test]")
    session.run("python", *arguments, *session.posargs, env={"PYTHONPATH": str(ROOT)})


@nox.session
def fuzz(session: nox.Session) -> None:
    """Random programs at every level of the compiler beside eager; words go to it: `-- --first 5000 --count
    2000`.
    """
    install_ours(session, "coilwork[demo,gpu,redis,test]")
    session.run("python", "-m", "integration_tests.fuzz", *(session.posargs or ("--count", "1000")))


@nox.session
def modules(session: nox.Session) -> None:
    """All samples of all modules of torch's database through generated code, about an hour; `-- --most 4` for
    some.
    """
    install_ours(session, "coilwork[demo,gpu,redis,test]")
    session.run("python", "-W", "ignore", "-m", "integration_tests.modules.sweep", *session.posargs)


@nox.session
def architectures(session: nox.Session) -> None:
    """A hundred architectures of transformers, small, through generated code beside eager, about an hour; `--
    --only gpt2,t5` for some.
    """
    install_ours(session, "coilwork[demo,gpu,redis,test]")
    session.run("python", "-W", "ignore", "-m", "integration_tests.architectures.sweep", *session.posargs)


@nox.session
def configurations(session: nox.Session) -> None:
    """Every launch configuration of every model's kernels compiled for an H200 and an MI300X; the tests
    compile one or two.
    """
    install_ours(session, "coilwork[demo,gpu,redis,test]")
    environment = {"EVERY_CONFIGURATION": "1"}
    file = "integration_tests/test_models_triton_compiled.py"
    # one test has all kernels of a model, in thousands of configurations
    session.run("pytest", file, "-q", "--timeout=0", *session.posargs, env=environment)


@nox.session
def sanitize(session: nox.Session) -> None:
    """The native executor's tests under AddressSanitizer and LeakSanitizer; other arguments go to pytest."""
    install_ours(session, "coilwork-runtime[test]")
    session.run("python", "devtools/sanitize.py", *session.posargs)


@nox.session
def consumers(session: nox.Session) -> None:
    """Small projects that use single packages, and the full stack, each in an environment of its own."""
    session.install(*QUIETLY, "pytest", "pytest-timeout", *CONSTRAINTS)
    folder = wheelhouse(session, list(PACKAGES))
    declared = {
        path.parent.name: libraries_of(declared_by(*path.read_text().split()))
        for path in ROOT.glob("integration_tests/consumers/*/requirements.txt")
    }
    environment = {
        "NOX_WHEELHOUSE": str(folder),
        "NOX_DECLARED": json.dumps(declared),
        **WHILE_TESTING,
    }
    session.run(
        "pytest", "integration_tests/consumers", "-q", *report(session), *session.posargs, env=environment
    )


# Packages whose tests mypy does not read yet.
UNCHECKED_TESTS = ("coilwork",)
# What mypy allows in tests beyond sources: lambdas, torch's untyped functions and decorators, checks at run
# time of what types promise, and to replace what a module imports.
TESTS_MAY = (
    "--allow-untyped-calls",
    "--allow-untyped-decorators",
    "--no-warn-return-any",
    "--no-warn-unreachable",
    "--implicit-reexport",
)


@nox.session
def typecheck(session: nox.Session) -> None:
    """mypy --strict on every package's source and on this repository's own tools; mypy on packages' tests."""
    needed = third_party(extras=("redis", "test", "cli"))
    link_libraries(session, needed)
    session.install(*QUIETLY, "mypy", "nox", *needed, *CONSTRAINTS)
    sources = [f"packages/{name}/src" for name in PACKAGES]
    session.run("mypy", *sources, "noxfile.py", "devtools", "benchmarks", *session.posargs)
    # Each package's alone, since files of several packages have one name. What they share is read once.
    for name in PACKAGES:
        folder = f"packages/{name}/tests"
        if name not in UNCHECKED_TESTS:
            options = (*TESTS_MAY, "--exclude", "/goldens/", "--cache-dir", ".mypy_cache/tests")
            session.run("mypy", *options, folder, *session.posargs, env={"MYPYPATH": str(ROOT / folder)})


@nox.session
def lint(session: nox.Session) -> None:
    """ruff's checks and its formatting, and code that nobody uses. `nox -s lint -- fix` mends what it can."""
    session.install(*QUIETLY, "ruff", "vulture", *CONSTRAINTS)
    if "fix" in session.posargs:
        session.run("ruff", "check", "--fix", ".")
        session.run("ruff", "format", ".")
        return
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "devtools/dead_code.py")


@nox.session
def api(session: nox.Session) -> None:
    """What each package exports beside its last release: a break fails. `-- --against COMMIT` compares with
    another state."""
    session.install(*QUIETLY, "griffe", "pytest", "pytest-timeout", *CONSTRAINTS)
    session.run("pytest", "integration_tests/test_api_breaks.py", "-q", *report(session))
    session.run("python", "devtools/api_breaks.py", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Source distributions and wheels of all packages into dist/."""
    session.install(*QUIETLY, "build", "hatchling", *CONSTRAINTS)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for name in PACKAGES:
        session.run(
            "python", "-m", "build", "--no-isolation", "--outdir", "dist", f"packages/{name}", silent=True
        )
        wheel_in(ROOT / "dist", name)


@nox.session
def bundle(session: nox.Session) -> None:
    """Wheels for a machine without a network that has torch and Triton: `-- FOLDER [PYTHON VERSION]`.

    There, `pip install --no-index --no-deps --target SITE FOLDER/*.whl` puts all packages, and what they and
    their tests need, beside the torch that it has.
    """
    if not session.posargs:
        session.error("wanted: the folder that receives the wheels")
    folder, version = session.posargs[0], (*session.posargs[1:], "3.12")[0]
    # Models of this suite are its own; torch brings numpy and sympy.
    present = {"torch", "triton", "transformers", "numpy", "sympy"}
    needed = [r for r in third_party(extras=("test", "demo")) if distribution_of(r) not in present]
    for name in PACKAGES:
        source = f"packages/{name}"
        session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source)
    download = ("python", "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", version)
    session.run(*download, "-d", folder, *needed, "pytest-xdist")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site into site/; a broken link or a missing page is an error. `-- serve` shows it."""
    session.install(*QUIETLY, "-r", "docs/requirements.txt", *CONSTRAINTS)
    session.run("mkdocs", *(("serve",) if "serve" in session.posargs else ("build", "--strict")))


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmarks: `-- cpu` (or nothing), or `-- gpu` with the torch that is there; more words go to
    `benchmarks run`.

    `-- gpu memory` measures kernels that memory limits and no models; more words go to `benchmarks memory`.
    """
    more = [word for word in session.posargs if word not in ("cpu", "gpu", "memory")]
    if "gpu" in session.posargs:
        environment = use_present_environment(session)
        python, device = sys.executable, "cuda"
        kernels = ("-m", "benchmarks", "memory", "--device", device)
        if "memory" in session.posargs:
            session.run(python, *kernels, *more, env=environment, external=True)
            return
        # What failed stands in its report; models are measured all the same.
        session.run(python, *kernels, env=environment, external=True, success_codes=[0, 1])
    else:
        install_ours(session, "coilwork[demo,test]")
        environment, python, device = dict[str, str](), "python", "cpu"
        for module in ("benchmarks.index_arithmetic", "benchmarks.scheduler_scaling"):
            session.run(python, "-m", module, env=environment)
    session.run(python, "-m", "benchmarks", "run", "--device", device, *more, env=environment, external=True)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """All tests marked `gpu`, with the torch of the Python that runs nox."""
    environment = use_present_environment(session)
    folders = [f"packages/{name}/tests" for name in PACKAGES]
    command = ("-m", "pytest", *folders, "integration_tests", "-q", "-m", "gpu", *session.posargs)
    session.run(sys.executable, *command, env=environment)


@nox.session(venv_backend="none")
def sanitize_kernels(session: nox.Session) -> None:
    """Tests marked `gpu`, in parts, under compute-sanitizer; words go to the command, as `-- --tools memcheck
    integration_tests/gpu`.
    """
    environment = use_present_environment(session)
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    session.run(
        sys.executable, "devtools/sanitize_kernels.py", *session.posargs, env=environment, external=True
    )


@nox.session(venv_backend="none")
def gpus(session: nox.Session) -> None:
    """Several ranks over NCCL, one a GPU, beside eager, and what they cost: words go to the command, as `--
    --worlds 4 --json ranks.json`; `-- --device cpu` for two ranks over gloo.
    """
    environment = use_present_environment(session)
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    command = ("-m", "integration_tests.ranks", *session.posargs)
    session.run(sys.executable, *command, env=environment, external=True)
