"""The rules of kernels whose programs share rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int, provably_le
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.workspace import scans_of, workspace_elements
from coilwork_ir.scalar import Combine, Reduce, Scalar, Sort, postorder
from coilwork_ir.verification.rules import Place, Rule

WORKSPACE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "workspace": Rule(
            "a workspace is an `inout` argument of i64 that nothing else touches and that holds a word for all that is told in it",
            "let `workspace_elements` say how large it is",
        ),
        "shared-rows": Rule(
            "programs share rows of known length of scans in one direction, in at least two pieces, where nothing is reduced, sorted, combined by a function or with memory",
            "leave the workspace out, and hint `looped`",
        ),
    }
)


def check_workspace(kernel: Kernel, roots: tuple[Scalar, ...], used: Collection[str], place: Place) -> None:
    """A kernel with a workspace does what its programs can share; `used` are the arguments that it loads and stores."""
    hints = kernel.hints
    scans = scans_of(roots)
    reduced = [r for r in kernel.ranges if r.kind != "parallel"]
    if hints.reduction != "split" or hints.split < 2:
        place.fail("shared-rows", f"the strategy is {hints.reduction} split {hints.split}")
    if len({scan.reverse for scan in scans}) != 1 or len(reduced) != 1 or reduced[0].kind != "reduction":
        place.fail("shared-rows", "the scans do not run along one range in one direction")
    if any(isinstance(scan.kind, Combine) for scan in scans):
        place.fail("shared-rows", "a scan combines by a function")
    if any(r.symbol.extent is None or as_int(r.symbol.extent) is None for r in kernel.ranges):
        place.fail("shared-rows", "an extent is not known")
    for node in postorder(roots):
        if isinstance(node, Reduce | Sort):
            place.fail("shared-rows", f"there is a {type(node).__name__.lower()}")
    if any(store.mode != "store" for store in kernel.stores):
        place.fail("shared-rows", "a store combines with memory")
    arg = next((arg for arg in kernel.args if arg.name == hints.workspace), None)
    if arg is None or arg.role != "inout" or arg.dtype is not DType.I64 or arg.name in used:
        place.fail("workspace", f"{hints.workspace} is no argument for that alone")
    if not provably_le(workspace_elements(kernel, roots), arg.span):
        place.fail("workspace", f"{hints.workspace} holds {arg.span!r} elements")
