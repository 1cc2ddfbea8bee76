"""Test files hold what passes give, and fail where the text or a result differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from coilwork_ir.conformance.text_cases import (
    MOST_POINTS,
    Settings,
    Transformed,
    check_text_case,
    find_text_cases,
    read_text_case,
)
from coilwork_ir.errors import InterpretError
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.loops import Graph
from coilwork_ir.loops.text import format_graph, parse_graph

GRAPH = """graph @g {
  symbol s0 in [0, inf]
  input %x: f32[s0]
  input %at: i64[s0]
  %y: f32[s0] = pointwise [i0: s0] {
    t0 = load %at[i0] : i64
    t1 = load %x[@0] using (t0) : f32
    t2 = neg(t1)
    yield t2
  }
  return (%y)
}
"""
KERNEL = """kernel @k fast {
  range x0: `4` parallel
  arg in0: f32 in span `4`
  arg out0: f32 out span `4`
  body {
    t0 = load %in0[x0] : f32
    store %out0[x0] = t0
  }
}
"""
HEAD = "# It stays as it is.\n# size.s0: 5\n# below.at: 2\n"


def keep(given: Graph | Kernel, settings: Settings) -> Transformed:
    text = format_graph(given) if isinstance(given, Graph) else format_kernel(given)
    return Transformed(text=settings.get("say", "") + text, result=given)


def take_absolute(given: Graph | Kernel, settings: Settings) -> Transformed:
    """A wrong pass, whose text is as expected."""
    return Transformed(text=GRAPH, result=parse_graph(GRAPH.replace("neg", "abs")))


def write(folder: Path, text: str) -> Path:
    path = folder / "case.txt"
    path.write_text(text)
    return path


def test_equal_text_and_results_pass(tmp_path: Path) -> None:
    check_text_case(write(tmp_path, f"{HEAD}\n{GRAPH}\n# expect:\n{GRAPH}"), keep)
    check_text_case(write(tmp_path, f"# A kernel.\n\n{KERNEL}\n# expect:\n{KERNEL}"), keep)


def test_another_text_fails_and_shows_the_difference(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEAD}\n{GRAPH}\n# expect:\n{GRAPH.replace('neg', 'abs')}")
    with pytest.raises(AssertionError, match=r"-    t2 = abs\(t1\)\n\+    t2 = neg\(t1\)"):
        check_text_case(path, keep)
    check_text_case(path, keep, update=True)
    check_text_case(path, keep)


def test_another_result_fails_even_when_texts_are_updated(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEAD}\n{GRAPH}\n# expect:\n{GRAPH}")
    for update in (False, True):
        with pytest.raises(AssertionError, match="result 0 is computed otherwise"):
            check_text_case(path, take_absolute, update=update)


def test_a_kernel_that_writes_less_fails(tmp_path: Path) -> None:
    def write_less(given: Graph | Kernel, settings: Settings) -> Transformed:
        return Transformed(text=KERNEL, result=parse_kernel(KERNEL.replace("range x0: `4`", "range x0: `3`")))

    with pytest.raises(AssertionError, match="out0 is computed otherwise"):
        check_text_case(write(tmp_path, f"# A kernel.\n\n{KERNEL}\n# expect:\n{KERNEL}"), write_less)


def test_each_expect_line_is_a_run_with_its_settings(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEAD}\n{GRAPH}\n# expect:\n\n# expect: say=once_ size.s0=2\n")
    check_text_case(path, keep, known=["say"], update=True)
    first, second = read_text_case(path).expectations
    assert second.text == "once_" + first.text
    assert second.settings({"size.s0": "5", "say": "never"}) == {"size.s0": "2", "say": "once_"}


def test_integers_stay_below_their_bound(tmp_path: Path) -> None:
    text = f"{HEAD}\n{GRAPH}\n# expect:\n{GRAPH}"
    with pytest.raises(InterpretError, match="is outside of"):
        check_text_case(write(tmp_path, text.replace("below.at: 2", "below.at: 600")), keep)


def test_large_inputs_alone_are_not_run(tmp_path: Path) -> None:
    large = write(tmp_path, f"# size.s0: {MOST_POINTS + 1}\n\n{GRAPH}\n# expect:\n{GRAPH}")
    with pytest.raises(AssertionError, match="needs the setting 'not run'"):
        check_text_case(large, keep)
    large.write_text("# not run: large\n" + large.read_text())
    check_text_case(large, keep)
    small = write(tmp_path, f"# not run: why not\n\n{GRAPH}\n# expect:\n{GRAPH}")
    with pytest.raises(AssertionError, match="small enough to run"):
        check_text_case(small, keep)


def test_files_without_an_expectation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one line"):
        read_text_case(write(tmp_path, GRAPH))


def test_names_of_tests_are_paths(tmp_path: Path) -> None:
    (tmp_path / "fuse").mkdir()
    write(tmp_path / "fuse", GRAPH)
    assert list(find_text_cases(tmp_path)) == ["fuse/case"]


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEAD}# sey: twice\n\n{GRAPH}\n# expect:\n{GRAPH}")
    with pytest.raises(ValueError, match="there is no setting 'sey'"):
        check_text_case(path, keep, known=["say"])
