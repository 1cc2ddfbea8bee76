"""What a worker's process does to compile less than Triton would by itself, with the same machine code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runtime_sample_kernels import checked_kernel, triton_kernel

from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels import worker
from coilwork_runtime.triton_kernels.compilation import get_gpu_target, make_candidates, read_triton_version
from coilwork_runtime.triton_kernels.worker import MissingFunctionError, check_functions, write_frame

# A process that compiles requests, and prints whether the result is the same without the small library, how
# often each way was gone, and facts about it.
PROBE = """
import json, os, sys, tempfile
from pathlib import Path
from coilwork_runtime.triton_kernels import worker

with tempfile.TemporaryDirectory() as folder:
    os.environ["TRITON_CACHE_DIR"] = folder
    worker.prepare()
    import triton
    tried, compile_it = [], triton.compile
    def watched(source, target, options):
        tried.append("simple" if "extern_libs" in options else "whole")
        return compile_it(source, target=target, options=options)
    triton.compile = watched
    request = json.load(sys.stdin)
    metadata, image = worker.compile_kernel(request, Path(folder))
    ways = list(tried)
    worker._OTHER_FUNCTIONS = worker.re.compile("")
    same = worker.compile_kernel(request, Path(folder)) == (metadata, image)
    from triton.runtime.cache import triton_key
    facts = {"ways": ways, "same": same, "hashed": triton_key.cache_info().misses}
    print(json.dumps(facts | {"lines": b".debug_line" in image, "last": tried[-1]}))
"""


def facts_of(spec: KernelSpec) -> dict[str, Any]:
    """What the probe says of the first candidate."""
    pytest.importorskip("triton", reason="compiles Triton kernels")
    first = make_candidates(spec, get_gpu_target(spec), read_triton_version())[0]
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps(first.request),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def computing(text: str) -> KernelSpec:
    """The sample kernel with `text` in place of its product."""
    sample = triton_kernel()
    return triton_kernel(source=sample.source.replace("tl.load(a + i, i < n0) * 2", text))


@pytest.mark.parametrize("function", ["rsqrt", "exp2", "sqrt"])
def test_simple_functions_give_the_machine_code_of_libdevice(function: str) -> None:
    facts = facts_of(computing(f"tl.{function}(tl.load(a + i, i < n0) + 1)"))
    assert (facts["ways"], facts["last"], facts["same"]) == (["simple"], "whole", True)


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("tl.log(tl.load(a + i, i < n0))", ["whole"]),
        # which the text does not tell
        ("tl.exp2(tl.load(a + i, i < n0).to(tl.float64)).to(tl.float32)", ["simple", "whole"]),
    ],
)
def test_other_functions_are_those_of_libdevice(text: str, ways: list[str]) -> None:
    facts = facts_of(computing(text))
    assert (facts["ways"], facts["same"]) == (ways, True)


def test_lines_are_kept_for_checks_alone_and_triton_is_not_read_whole() -> None:
    plain, checked = facts_of(triton_kernel()), facts_of(checked_kernel())
    assert (plain["lines"], checked["lines"]) == (False, True)
    assert (plain["hashed"], checked["hashed"]) == (0, 0)


def test_a_function_without_a_body_is_missed() -> None:
    whole = "declare i32 @__nvvm_reflect(ptr)\ndefine internal float @__nv_sinf(float %x) {\n"
    assert check_functions(whole) == whole
    with pytest.raises(MissingFunctionError, match="__nv_cosf"):
        check_functions(whole + "declare float @__nv_cosf(float) #3\n")


def test_triton_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    """A worker without a request, whose Triton leaves a mark when it is imported, and then fails."""
    mark = tmp_path / "imported"
    (tmp_path / "triton.py").write_text(f"open({str(mark)!r}, 'w').close()\nraise RuntimeError('broken')\n")
    path = [str(tmp_path), *sys.path]
    first = io.BytesIO()
    write_frame(first, {"path": path})
    subprocess.run([sys.executable, "-P", worker.__file__], input=first.getvalue(), check=True)
    assert mark.exists()
