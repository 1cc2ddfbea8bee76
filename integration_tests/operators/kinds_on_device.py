"""The calls of `kinds` on an accelerator, which eager's kernels there refuse, through the compiler.

    python -m integration_tests.operators.kinds_on_device --device cuda --processes 15 --seconds 240

Operands are moved to the device in the graph, so that the tables need no other tensors. Eager is asked in
forks before this process touches the device, as forks of one that has can not use it. Calls that eager's
kernels stop at an assertion are `integration_tests/gpu/test_bad_calls_gpu.py`'s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from integration_tests.operators.bad_calls import Refusal, ask_eager, judge_call
from integration_tests.operators.database import Sample
from integration_tests.operators.kinds import KINDS
from integration_tests.operators.kinds.call import BadCall
from integration_tests.quicker_compiles import quicken_compiles


def refused_calls(device: str, shard: int, shards: int) -> list[tuple[str, BadCall, Refusal]]:
    """Every so many of the calls, each with its name, that eager refuses on `device`."""
    chosen = [(name, call) for table in KINDS.values() for name, call in table.items() if not call.training]
    chosen = chosen[shard::shards]

    def nth(position: int, *given: Any) -> None:
        _on_device(chosen[position][1].function, device)(*given)
        if device != "cpu":
            torch.accelerator.synchronize()

    asked = [Sample(arguments=(k, *call.given), keywords={}) for k, (_, call) in enumerate(chosen)]
    said = ask_eager(nth, asked, on_accelerator=device != "cpu")
    return [(*call, refusal) for call, refusal in zip(chosen, said) if refusal.kind is not None]


def judged_calls(device: str, shard: int, shards: int, *, until: float) -> Iterator[dict[str, str]]:
    """One record per call, as long as there is time."""
    for name, call, refusal in refused_calls(device, shard, shards):
        if time.monotonic() > until:
            return
        sample = Sample(arguments=call.given, keywords={})
        status, detail = judge_call(_on_device(call.function, device), sample, refusal, dynamic=False)
        yield {"name": name, "status": status, "detail": detail, "eager": f"{refusal.kind}: {refusal.text}"}


def _on_device(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        return function(
            *(one.to(device) if isinstance(one, Tensor) and not one.is_meta else one for one in given)
        )

    return call if device != "cpu" else function


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cuda")
    add("--processes", type=int, default=1)
    add("--seconds", type=float, default=1e6, help="begin no call after this many seconds")
    add("--results", type=Path, default=Path("kinds_on_device.jsonl"), help="overwritten")
    add("--shard", default="", help="i/n: what one of the processes does, on its own")
    chosen = parser.parse_args()
    if chosen.shard:
        shard, shards = map(int, chosen.shard.split("/"))
        torch.set_num_threads(1)
        quicken_compiles()
        for record in judged_calls(chosen.device, shard, shards, until=time.monotonic() + chosen.seconds):
            print(json.dumps(record), flush=True)
        return 0
    records = list(_run_shards(chosen))
    chosen.results.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    wrong = [record for record in records if record["status"] not in ("ok", "torch")]
    for record in wrong:
        print(
            f"{record['status']} {record['name']}: {record['detail'][:400]}  eager: {record['eager'][:200]}"
        )
    counted = {status: sum(one["status"] == status for one in records) for status in _statuses(records)}
    print(f"{len(records)} calls that eager refuses on {chosen.device}, torch {torch.__version__}: {counted}")
    return 1 if wrong else 0


def _run_shards(chosen: argparse.Namespace) -> Iterator[dict[str, str]]:
    command = [
        *(sys.executable, "-m", "integration_tests.operators.kinds_on_device"),
        *("--device", chosen.device, "--seconds", str(chosen.seconds)),
    ]
    shards = range(chosen.processes)
    paths = [chosen.results.with_suffix(f".{shard}.jsonl") for shard in shards]
    running = []
    for shard, path in zip(shards, paths):
        with path.open("w") as file:
            process = subprocess.Popen(
                [*command, "--shard", f"{shard}/{chosen.processes}"],
                stdout=file,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1", "COILWORK_WORKERS": "1"},
            )
        running.append(process)
    for shard, (process, path) in enumerate(zip(running, paths)):
        status = process.wait()
        yield from map(json.loads, path.read_text().splitlines())
        path.unlink()
        if status:
            yield {"name": f"shard {shard}", "status": "died", "detail": f"status {status}", "eager": ""}


def _statuses(records: list[dict[str, str]]) -> list[str]:
    return sorted({record["status"] for record in records})


if __name__ == "__main__":
    raise SystemExit(main())
