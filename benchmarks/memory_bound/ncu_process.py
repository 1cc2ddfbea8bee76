"""The process that `ncu` watches: one call of a case under one backend, from the caches of its
compilation.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.backends import compile_with
from benchmarks.memory_bound.case import Make, call_of
from benchmarks.memory_bound.cases import find_case

WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory_bound.ncu_process", description=__doc__
    )
    parser.add_argument("--case", required=True)
    parser.add_argument("--device", choices=("cuda",), required=True)
    parser.add_argument("--caches", help="taken as the case's other processes take it; not used here")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--backend", required=True)
    found = parser.parse_args()
    case = find_case(found.case)
    torch.manual_seed(0)
    inputs = case.make(Make(device=torch.device(found.device)), tiny=found.tiny)
    function = (
        case.function
        if found.backend == "eager"
        else compile_with(case.function, found.backend, dynamic=case.dynamic)
    )
    call = call_of(case, function, inputs, [])
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
