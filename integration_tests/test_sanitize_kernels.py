"""What `devtools/sanitize_kernels.py` reads in the logs of compute-sanitizer, and how it splits tests."""

from __future__ import annotations

from sanitize_kernels import Finding, find_findings, split

LOG = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at gated_products+0x5f0 in <kernel 26>:72
=========     by thread (0,0,0) in block (8,0,0)
=========     Address 0x7f6fe090e000
=========
========= Invalid __global__ read of size 2 bytes
=========     at void at::native::vectorized_elementwise_kernel<4>(int, T2)+0x10
=========     by thread (1,0,0) in block (0,0,0)
=========
========= Error: Race reported between Write access at sums+0x30 in /tmp/k.py:9 and Read access at sums+0x90
========= ERROR SUMMARY: 2 errors
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_findings_name_kernels_of_ours_with_their_line() -> None:
    found = list(find_findings(LOG))
    assert found[:2] == [
        Finding("Uninitialized __global__ memory read of size 4 bytes", "gated_products, line 72"),
        Finding("Invalid __global__ read of size 2 bytes", ""),
    ]
    assert [one.place for one in found[2:]] == ["sums, line 9"]


def test_a_part_has_tests_of_one_file() -> None:
    tests = [*(f"a.py::test[{k}]" for k in range(5)), "b.py::test"]
    parts = split(tests, 2, ["memcheck", "initcheck"])
    assert [len(part.tests) for part in parts] == [2, 2, 1, 1] * 2
    assert all(len({test.split("::")[0] for test in part.tests}) == 1 for part in parts)
    assert len({part.name for part in parts}) == len(parts)
