"""A process that compiles Triton kernels for its parent, which may have initialised CUDA and must not fork.

Run as a script, so that it imports Triton and nothing else of ours or torch's. It reads requests from
standard input and writes replies to standard output, both as frames: the header's length and the blob's (8
bytes each), the header (JSON), the blob. It never touches a device, and ends when its input does or after
`IDLE_LIMIT_S` without a request. Triton is imported before the first request, which may be a while.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import logging
import os
import re
import select
import signal
import struct
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final

IDLE_LIMIT_S: Final = 300.0
LONGEST_FRAME: Final = 1 << 31
# Requests between two runs of the garbage collector, which by itself takes a tenth of the time; each leaves
# about a megabyte to it.
COLLECT_AFTER: Final = 64
# What a launch needs to know of a compiled kernel, and its value where a Triton release does not say.
METADATA: Final = (
    ("name", ""),
    ("shared", 0),
    ("num_warps", 4),
    ("num_ctas", 1),
    ("warp_size", 32),
    ("global_scratch_size", 0),
    ("profile_scratch_size", 0),
    ("launch_cooperative_grid", False),
    ("launch_pdl", False),
)

_LENGTHS: Final = struct.Struct("<QQ")

# The functions of libdevice that most kernels need, and those of Triton's language that `SIMPLE_FUNCTIONS`
# certainly lacks.
SIMPLE_FUNCTIONS: Final = Path(__file__).with_name("simple_functions.ll")
# By compiler, what it calls the library that `SIMPLE_FUNCTIONS` stands in for.
LIBRARIES: Final[Mapping[str, str]] = MappingProxyType({"cuda": "libdevice"})
_OTHER_FUNCTIONS: Final = re.compile(r"\blibdevice\.|\btl\.(?:log2?|sin|cos|erf|floor|ceil|sqrt_rn|div_rn)\(")
_MISSING_FUNCTION: Final = re.compile(r"^declare [^@\n]*@(__nv_\w+)\(", re.MULTILINE)

# `add.s16x2 d, a, b;` and its like: LLVM's for two 16-bit indices in one register.
_PACKED: Final = re.compile(r"\b(add|sub|min|max)\.([su])16x2\s+(%\w+), (%\w+), (%\w+);")
_HALVES: Final = (
    "{{ .reg .b16 cwa<2>, cwb<2>; mov.b32 {{cwa0, cwa1}}, {a}; mov.b32 {{cwb0, cwb1}}, {b}; "
    "{op} cwa0, cwa0, cwb0; {op} cwa1, cwa1, cwb1; mov.b32 {d}, {{cwa0, cwa1}}; }}"
)

# `cvt.rn.satfinite.e4m3x2.f32 d, a, b;` and its like: two 8-bit floats in a register of 16 bits, and two
# registers as one of 32 bits.
_SMALL_PAIR: Final = re.compile(r"\bcvt[\w.]*\.u?e\dm\dx2\.\w+\s+(%rs\d+),")
_SHORT_REGISTER: Final = re.compile(r"%rs\d+")
_JOIN: Final = re.compile(r"\bmov\.b32\s+(%\w+), \{(%rs\d+), (%rs\d+)\};")
_SHIFTED_JOIN: Final = (
    "{{ .reg .b32 cwj<2>; cvt.u32.u16 cwj0, {low}; cvt.u32.u16 cwj1, {high}; shl.b32 cwj1, cwj1, 16; "
    "or.b32 {d}, cwj0, cwj1; }}"
)


def write_frame(stream: BinaryIO, header: Mapping[str, Any], blob: bytes = b"") -> None:
    """Send one frame."""
    text = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(text), len(blob)) + text + blob)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Return the next frame, or None at the end of the stream.

    Raises:
        EOFError: the stream ends within a frame.
    """
    lengths = _read(stream, _LENGTHS.size)
    if not lengths:
        return None
    if len(lengths) < _LENGTHS.size:
        raise EOFError("the stream ends within a frame")
    header_bytes, blob_bytes = _LENGTHS.unpack(lengths)
    if header_bytes + blob_bytes > LONGEST_FRAME:
        raise EOFError("the stream holds no frame")
    body = _read(stream, header_bytes + blob_bytes)
    if len(body) < header_bytes + blob_bytes:
        raise EOFError("the stream ends within a frame")
    header: dict[str, Any] = json.loads(body[:header_bytes])
    return header, body[header_bytes:]


def _read(stream: BinaryIO, count: int) -> bytes:
    """`count` bytes, or fewer at the end. The worker's stream is unbuffered, so that `select` sees all there
    is; it reads in parts.
    """
    parts: list[bytes] = []
    while count:
        part = stream.read(count)
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class MissingFunctionError(Exception):
    """A kernel calls a function that the library it was compiled with lacks."""


@functools.cache
def prepare() -> None:
    """Import Triton, and have it do what is wanted here and nothing else.

    Raises:
        ImportError: Triton is not installed.
    """
    # Only here, in the worker: the parent may lack Triton, and pays no import for it.
    import triton

    triton.knobs.runtime.add_stages_inspection_hook = mend_stages
    # Triton's cache is in a folder that goes with this process: the texts of stages in it are for nobody.
    triton.knobs.compilation.store_binary_only = True
    # A key is for one request, and kernels that were compiled before do not come here. Triton's own reads all
    # of Triton.
    vars(importlib.import_module("triton.compiler.compiler"))["get_cache_key"] = _unique_key


def _unique_key(*_: Any, **__: Any) -> str:
    return f"request {uuid.uuid4()}"


def compile_kernel(request: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], bytes]:
    """Compile what `request` describes; return launch metadata and the device binary.

    `folder` receives the kernel's text as a file, which Triton reads. What Triton raises goes through.
    """
    prepare()
    import triton
    from triton.backends.compiler import GPUTarget

    backend, arch, warp_size = request["target"]
    # Lines are for the messages of failed checks. The text is in a file that goes with this process, so a
    # profiler has no use for them.
    triton.knobs.compilation.disable_line_info = not request["options"].get("debug", False)
    function = load_function(request["source"], request["entry"], folder)
    types: Mapping[str, str] = request["types"]
    source = find_source_class(function)(
        fn=function,
        signature={name: types.get(name, "constexpr") for name in function.arg_names},
        constexprs=request["constants"],
        attrs={(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in request["divisible"]},
    )
    target = GPUTarget(backend, arch, warp_size)
    compiled = None
    library = LIBRARIES.get(backend)
    if library and not _OTHER_FUNCTIONS.search(request["source"]):
        # `ValueError`, of a Triton whose LLVM does not read the text
        with contextlib.suppress(MissingFunctionError, ValueError):
            simple = {"extern_libs": {library: str(SIMPLE_FUNCTIONS)}}
            compiled = triton.compile(source, target=target, options=request["options"] | simple)
    if compiled is None:
        compiled = triton.compile(source, target=target, options=request["options"])
    known = compiled.metadata._asdict()
    metadata = {name: known.get(name, default) for name, default in METADATA}
    return metadata, compiled.kernel


def find_source_class(function: Any) -> Any:
    """Return the class of what Triton compiles `function` from: Triton, or its dialect Gluon, whose functions
    say in what layouts threads hold blocks.
    """
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def mend_stages(*given: Any) -> tuple[str, str] | None:
    """Triton's hook on the stages of a compilation: functions are not missing, and PTX goes to `ptxas`
    without what that gets wrong.

    `given` are the back end, its stages by name and more. Without any, Triton asks for a key of what the hook
    does, and a hash of it.
    """
    if not given:
        return "no packed arithmetic, no joins of shared pairs", "2"
    stages: dict[str, Any] = given[1]
    make_llir, make_ptx = stages.get("llir"), stages.get("ptx")
    if make_llir is not None and make_ptx is not None:
        stages["llir"] = lambda source, metadata: check_functions(make_llir(source, metadata))
        stages["ptx"] = lambda source, metadata: split_joined_pairs(
            split_packed_arithmetic(make_ptx(source, metadata))
        )
    return None


def check_functions(llir: str) -> str:
    """`llir` as it is.

    Raises:
        MissingFunctionError: it calls a function of libdevice that it does not contain.
    """
    missing = _MISSING_FUNCTION.search(llir)
    if missing is not None:
        raise MissingFunctionError(missing[1])
    return llir


def split_packed_arithmetic(ptx: str) -> str:
    """`ptx` with each operation on a pair of 16-bit integers as two on 16-bit integers.

    ptxas 12.8 to 13.0 lose the constant that is added to a pair where another pair gets the same one, so that
    kernels read wrong places (triton-lang/triton#11581; seen in gradients of max-pools on sm_90, right with
    `ptxas -O0`).
    """

    def halves(match: re.Match[str]) -> str:
        name, sign, d, a, b = match.groups()
        return _HALVES.format(op=f"{name}.{sign}16", d=d, a=a, b=b)

    return _PACKED.sub(halves, ptx)


def split_joined_pairs(ptx: str) -> str:
    """`ptx` with shifts where a pair of 8-bit floats that something else reads, too, is joined with other 16
    bits.

    ptxas 12.8 (of Triton 3.6 and 3.7) makes the conversion and the join one instruction,
    `F2FP...PACK_AB_MERGE_C`, at the place of the join. It leaves readers that come before where they are:
    they read a register that nothing was written to. Seen on sm_90 where a kernel rounds to 8-bit floats,
    stores them, and goes on with them; right with ptxas 13.1.
    """
    pairs = set(_SMALL_PAIR.findall(ptx))
    if not pairs:
        return ptx
    uses = Counter(_SHORT_REGISTER.findall(ptx))

    def join(match: re.Match[str]) -> str:
        d, low, high = match.groups()
        # written once, read by the join alone
        if all(uses[one] <= 2 for one in (low, high) if one in pairs):
            return match[0]
        return _SHIFTED_JOIN.format(d=d, low=low, high=high)

    return _JOIN.sub(join, ptx)


def load_function(source: str, entry: str, folder: Path) -> Any:
    """Return the Triton function `entry` of `source`, which is kept in a file because Triton reads its
    lines.
    """
    handle, path = tempfile.mkstemp(suffix=".py", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(source)
    scope: dict[str, Any] = {"__name__": f"coilwork_kernel.{entry}", "__file__": path}
    exec(compile(source, path, "exec"), scope)
    return scope[entry]


def serve(
    requests: BinaryIO, replies: BinaryIO, answer: Callable[[Mapping[str, Any]], tuple[dict[str, Any], bytes]]
) -> None:
    """Answer requests until there are no more. A failed one is answered with its error."""
    answered = 0
    while select.select([requests], [], [], IDLE_LIMIT_S)[0]:
        frame = read_frame(requests)
        if frame is None:
            return
        try:
            metadata, binary = answer(frame[0])
        # Whatever a kernel's text makes Triton raise is the answer to its request; the log has the traceback.
        except Exception as error:
            logging.exception("request failed")
            write_frame(replies, {"error": f"{type(error).__name__}: {error}"})
        else:
            write_frame(replies, {"metadata": metadata}, binary)
        answered += 1
        if answered % COLLECT_AFTER == 0:
            gc.collect()


def main() -> None:
    """Serve the parent. The first frame holds its import path."""
    # the parent may ignore the ends of its children, whose exit codes the system then forgets
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # what Triton or a tool of its prints must not get between the frames
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(0, "rb", buffering=0)
    first = read_frame(requests)
    if first is None:
        return
    sys.path[:] = first[0]["path"]
    # what is wrong with Triton is the answer to a request
    with contextlib.suppress(Exception):
        prepare()
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="coilwork-triton-") as folder:
        # Triton's own cache would keep a second copy of everything
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder, "cache"))
        serve(requests, replies, lambda request: compile_kernel(request, _make_folder(folder)))


def _make_folder(folder: str) -> Path:
    """Return the folder, made anew if somebody has removed it: a worker may live for weeks."""
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    main()
