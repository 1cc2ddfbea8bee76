"""Calls with positions that a GPU's kernels refuse, each made in a process of its own: an assertion on the
device ends its context.

    python -m integration_tests.bad_device_calls cuda

A line of JSON for each call and way of making it: "eager", "compiled" or "dynamic". The parent imports
everything, but leaves the device alone, so that its children, several at a time, need not import again and
have the device to themselves.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning

WAYS: Final = ("eager", "compiled", "dynamic")
# What eager's kernels for GPUs give a result for, though those for CPUs refuse it.
TAKEN_ON_GPUS: Final = frozenset({"embedding_bag from 1"})
# Seconds for one call, with what is compiled for it.
_LIMIT_S: Final = 240
_AT_ONCE: Final = min(16, os.cpu_count() or 1)
_ASSERTIONS: Final = ("device-side assert", "unspecified launch failure")


def _grid(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def _positions(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


_X: Final = _grid(5, 4)
_TABLE: Final = _grid(6, 8)
_BAGGED: Final = _positions(0, 1, 5, 2, 3)
_PLACES: Final = torch.tensor([[[[0, 3], [9, 15]]]])
_Call = tuple[Callable[..., Tensor], tuple[Tensor, ...]]

CALLS: Final[Mapping[str, _Call]] = MappingProxyType(
    {
        "embedding_bag down": (
            lambda k, w, o: F.embedding_bag(k, w, o * 2, mode="sum"),
            (_BAGGED, _TABLE, _positions(0, 2, 1)),
        ),
        "embedding_bag down, the largest": (
            lambda k, w, o: F.embedding_bag(k, w, o * 2, mode="max"),
            (_BAGGED, _TABLE, _positions(0, 2, 1)),
        ),
        "embedding_bag from 1": (
            lambda k, w, o: F.embedding_bag(k, w, o + 1, mode="sum"),
            (_BAGGED, _TABLE, _positions(0, 1)),
        ),
        "embedding_bag, rows": (
            lambda k, w, o: F.embedding_bag(k + 1, w, o, mode="mean"),
            (_BAGGED, _TABLE, _positions(0, 2)),
        ),
        "embedding": (lambda k, w: F.embedding(k + 1, w) * 2, (_BAGGED, _TABLE)),
        "gather": (lambda x, k: torch.gather(x * 2, 1, k + 1), (_X, _positions(0, 3)[None])),
        "gather below": (lambda x, k: torch.gather(x * 2, 1, k - 1), (_X, _positions(0, 3)[None])),
        "index": (lambda x, k: (x * 2)[k + 2], (_X, _positions(0, 3))),
        "index_select": (lambda x, k: torch.index_select(x * 2, 1, k + 1), (_X, _positions(0, 3))),
        "take": (lambda x, k: torch.take(x * 2, k * 7), (_X, _positions(0, 3))),
        "scatter": (
            lambda x, k, s: torch.scatter(x * 2, 1, k + 1, s),
            (_X, _positions(0, 3)[None], _grid(1, 2)),
        ),
        "scatter_add": (
            lambda x, k, s: torch.scatter_add(x * 2, 1, k - 1, s),
            (_X, _positions(0, 3)[None], _grid(1, 2)),
        ),
        "scatter_reduce": (
            lambda x, k, s: torch.scatter_reduce(x * 2, 1, k + 1, s, "amax"),
            (_X, _positions(0, 3)[None], _grid(1, 2)),
        ),
        "index_add": (
            lambda x, k, s: torch.index_add(x * 2, 1, k + 1, s),
            (_X, _positions(0, 3), _grid(5, 2)),
        ),
        "index_put": (lambda x, k: torch.index_put(x * 2, (k + 2,), x[0]), (_X, _positions(0, 3))),
        "max_unpool2d": (lambda d, k: F.max_unpool2d(d * 1, k + 1, 2), (_grid(1, 1, 2, 2), _PLACES)),
        "max_unpool2d into the next plane": (
            lambda d, k: F.max_unpool2d(d * 1, k + 1, 2),
            (_grid(1, 2, 2, 2), _PLACES.expand(1, 2, 2, 2)),
        ),
        "one_hot": (lambda k: F.one_hot(k + 1, 4) * 2, (_positions(0, 3),)),
        "cross_entropy": (lambda x, k: F.cross_entropy(x * 1.0, k + 1), (_X, _positions(0, 1, 2, 3, 1))),
        "cross_entropy below": (
            lambda x, k: F.cross_entropy(x * 1.0, k - 1),
            (_X, _positions(0, 1, 2, 3, 1)),
        ),
        "cross_entropy of planes": (
            lambda x, k: F.cross_entropy(x * 1.0, k + 1),
            (_grid(1, 4, 2, 2), torch.tensor([[[0, 3], [1, 2]]])),
        ),
    }
)

# Positions so far off that a load from there is an illegal access: eager's kernels assert before they load.
_OFF: Final = 0x2AAA_AAAA
FAR: Final[Mapping[str, _Call]] = MappingProxyType(
    {
        "far embedding": (lambda k, w: F.embedding(k + _OFF, w) * 2, (_BAGGED, _TABLE)),
        "far gather": (lambda x, k: torch.gather(x * 2, 1, k + _OFF), (_X, _positions(0, 3)[None])),
        "far index": (lambda x, k: (x * 2)[k + _OFF] + 1, (_X, _positions(0, 3))),
        "far index below": (lambda x, k: (x * 2)[k - _OFF] + 1, (_X, _positions(0, 3))),
        "far index_select": (
            lambda x, k: torch.index_select(x * 2, 0, k + _OFF) + 1,
            (_X, _positions(0, 3)),
        ),
        "far element": (lambda x, k: x[k, k - _OFF] * 2, (_X, _positions(0, 3))),
        "far of rows": (lambda x, k: x[k][k + _OFF].exp(), (_X, _positions(0, 3))),
        "far at a position": (lambda x, k: x[(k + _OFF)[k * 2 + _OFF]] + 1, (_X, _positions(0, 3))),
        "far row sums": (lambda w, k: w[k + _OFF].softmax(-1), (_grid(8, 512), _BAGGED)),
        "far sums": (lambda w, k: w[k + _OFF].sum(0), (_grid(8, 512), _BAGGED)),
        "far products": (lambda w, k: w[k + _OFF] @ w.t(), (_grid(8, 64), _BAGGED)),
        "far scatter": (
            lambda x, k, s: torch.scatter(x * 2, 1, k + _OFF, s),
            (_X, _positions(0, 3)[None], _grid(1, 2)),
        ),
        "far index_add": (
            lambda x, k, s: torch.index_add(x * 2, 1, k - _OFF, s),
            (_X, _positions(0, 3), _grid(5, 2)),
        ),
        "far rows of an index_add": (
            lambda x, k: torch.zeros_like(x).index_add(0, k, x[k + _OFF]),
            (_X, _positions(0, 3)),
        ),
        "far neighbours": (
            lambda x, k: F.pad(x[k + _OFF], (0, 0, 1, 2))[1:] * 2,
            (_X, _positions(0, 3, 1)),
        ),
        "far bags": (
            lambda k, w, o: F.embedding_bag(k + _OFF, w, o, mode="sum"),
            (_BAGGED, _TABLE, _positions(0, 2)),
        ),
        "far cross_entropy": (
            lambda x, k: F.cross_entropy(x * 1.0, k + _OFF),
            (_X, _positions(0, 1, 2, 3, 1)),
        ),
        "far max_unpool2d": (
            lambda d, k: F.max_unpool2d(d * 1, k + _OFF, 2),
            (_grid(1, 1, 2, 2), _PLACES),
        ),
    }
)


def make_call(name: str, way: str, device: str) -> dict[str, Any]:
    """What becomes of the call: "a result" with its values, "an assertion" on the device, or the type of
    another error.
    """
    function, given = (CALLS | FAR)[name]
    run: Callable[..., Tensor] = function
    if way != "eager":
        chosen = partial(backend, options={"strict": True})
        run = torch.compile(function, backend=chosen, dynamic=way == "dynamic")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", CoilworkFallbackWarning)
            result = run(*(one.to(device) for one in given)).cpu()
    except Exception as error:  # noqa: BLE001  any error is an answer
        inner = getattr(error, "inner_exception", None) or error
        asserted = any(
            words in text for text in (str(error), _find_device_error(device)) for words in _ASSERTIONS
        )
        return {"is": "an assertion" if asserted else type(inner).__name__, "text": str(error)[:400]}
    return {"is": "a result", "values": result.double().flatten().tolist()}


def _find_device_error(device: str) -> str:
    """What ended the context of the device, which a library called later tells in words of its own; "" if
    nothing did.
    """
    try:
        torch.get_device_module(device).synchronize()
    except RuntimeError as error:
        return str(error)
    return ""


def main(device: str) -> int:
    torch.set_num_threads(1)
    pending = [(name, way) for name in (*CALLS, *FAR) for way in WAYS]
    running: dict[int, tuple[str, str, int]] = {}
    while pending or running:
        while pending and len(running) < _AT_ONCE:
            name, way = pending.pop()
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                _answer(name, way, device, writing)
            os.close(writing)
            running[child] = (name, way, reading)
        child, status = os.wait()
        name, way, reading = running.pop(child)
        with os.fdopen(reading) as answers:
            said = answers.read()
        answer = json.loads(said) if said else {"is": "a dead process", "text": f"status {status}"}
        print(json.dumps({"name": name, "way": way, **answer}), flush=True)
    return 0


def _answer(name: str, way: str, device: str, writing: int) -> NoReturn:
    signal.alarm(_LIMIT_S)
    with os.fdopen(writing, "w") as answers:
        answers.write(json.dumps(make_call(name, way, device)))
    os._exit(0)


def read_answers(lines: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """The answers by name and way."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        record = json.loads(line)
        found.setdefault(record["name"], {})[record["way"]] = record
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
