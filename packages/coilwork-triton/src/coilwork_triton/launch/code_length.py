"""How many elements a thread has where each takes so many operations that compilers take long.

Machine code has each operation once per element of a thread. LLVM and ptxas take up to a millisecond for
each weighted operation in it, and longer where values no more fit into registers: 16 elements of a chain of
eight logarithms of the gamma function take 19 s, four of them 4 s. With so much to compute, nothing is
gained by many elements: loads are waited for no more.
"""

from __future__ import annotations

import math
from dataclasses import replace

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import BLOCKS, Facts


def shortened(proposed: Config, facts: Facts, target: Target) -> Config:
    """`proposed`, with fewer elements per thread where its machine code, which has all operations once for
    each, would be too long.

    Blocks of points are made smaller; rows, whose blocks are what they are, get more threads. Memory does
    not notice: it has long delivered the next elements when so much has been computed.
    """
    grids = target.machine.grids
    blocks = {name: size for name, size in proposed.meta if name in BLOCKS.values()}
    warps = proposed.num_warps
    most = min(grids.most_row_warps, target.max_threads_per_block // target.warp_size)
    while True:
        elements, threads = math.prod(blocks.values()), warps * target.warp_size
        if elements <= threads or facts.work.operations * elements <= grids.longest_code * threads:
            break
        if facts.walk == "pointwise":
            blocks[max(blocks, key=lambda name: blocks[name])] //= 2
        elif warps < most:
            warps *= 2
        else:
            break
    meta = tuple((name, blocks.get(name, value)) for name, value in proposed.meta)
    return replace(proposed, meta=meta, num_warps=warps)
