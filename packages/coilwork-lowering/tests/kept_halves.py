"""A torch.compile backend that runs what Coilwork parts a joint graph into, by eager mode, and keeps it for a
look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from aot_compilers import compiler_of
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified

from coilwork_lowering import LoweringOptions, decompositions, partition


class KeptHalves:
    """`graphs`: forward and backward of each joint graph, in the order in which they were made."""

    def __init__(self, options: LoweringOptions | None = None, **rest: Any) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self._options = options or LoweringOptions()
        self._rest = rest

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Any:
        return aot_module_simplified(
            gm,
            list(inputs),
            fw_compiler=compiler_of(self._keep),
            bw_compiler=compiler_of(self._keep),
            decompositions=decompositions(self._options),
            partition_fn=partial(partition, lowering=self._options),
            **self._rest,
        )

    def _keep(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return make_boxed_func(gm.forward)
