"""Counts the lines that run in files of Coilwork's packages.

The function that Python calls for each line is native: one in Python takes several times as long as the
lines themselves.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

_SOURCE: Final = r"""
#include <Python.h>
#include <frameobject.h>
#include <cstring>
#include <unordered_map>

static std::unordered_map<PyCodeObject*, bool> known;
static PyCodeObject* latest;
static bool latest_counts;
static long long lines;

static bool counts(PyCodeObject* code) {
    auto found = known.find(code);
    if (found != known.end()) return found->second;
    const char* name = PyUnicode_AsUTF8(code->co_filename);
    if (!name) PyErr_Clear();
    Py_INCREF(code);  // another one at its address would pass for it
    return known[code] = name && std::strstr(name, "coilwork");
}

static int event(PyObject*, PyFrameObject* frame, int what, PyObject*) {
    if (what == PyTrace_CALL) return 0;
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (code != latest) {
        latest_counts = counts(code);
        latest = code;
    }
    lines += latest_counts;
    Py_DECREF(code);
    return 0;
}

extern "C" void start_counting() {
    lines = 0;
    PyEval_SetTrace(event, nullptr);
}

extern "C" long long stop_counting() {
    PyEval_SetTrace(nullptr, nullptr);
    return lines;
}
"""


@functools.cache
def _counter() -> ctypes.PyDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "lines.cpp"), Path(folder, "lines.so")
        source.write_text(_SOURCE)
        include = f"-I{sysconfig.get_paths()['include']}"
        command = ["g++", "-O1", "-shared", "-fPIC", include, str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        loaded = ctypes.PyDLL(str(library))
    loaded.start_counting.restype = None
    loaded.stop_counting.restype = ctypes.c_longlong
    return loaded


class LineCounter:
    """Counts the lines of this thread that run while it is entered, and the returns and errors behind them.

    `lines` is the count, afterwards.
    """

    def __init__(self) -> None:
        self._counter = _counter()
        self.lines = 0

    def __enter__(self) -> LineCounter:
        if sys.gettrace() is not None:
            raise RuntimeError("this thread is traced by something else")
        self._counter.start_counting()
        return self

    def __exit__(self, *error: object) -> None:
        self.lines = self._counter.stop_counting()
