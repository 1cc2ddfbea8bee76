"""Which launches to try: block sizes and warps from the shape of the work and the device.

The reasoning, per kind of kernel (measured on an H200; other devices differ in degree):

- A thread moves most when its loads are 16 bytes wide, and a few of them are in flight. Sixteen elements per
  thread and four warps do that for two- and four-byte elements, or eight and eight where threads have much to
  compute.
- Two candidates do if they differ much; there is a third where, over the kernels of models and of benchmarks,
  it was now and then faster than both by more than a few percent.
- A grid smaller than two blocks per multiprocessor leaves some idle, so small work gets small blocks.
- A row kept in registers by one program reaches a copy's bandwidth at 16 to 32 elements per thread; with 32
  warps, or with a mask that a divisible row does not need, it loses a third.
- Threads work on lanes behind a row's end in vain, unless all of them have such lanes: half as many threads,
  or half as wide accesses, leave fewer (`idle_lanes.py`).
- A reduction across rows that are contiguous along x is bandwidth bound only if a block spans at least 128
  bytes of x.
- Rows that are walked, for sums of columns too, need the next ones on their way while some are reduced. Few
  threads with many elements each are best: two blocks of 128 threads per multiprocessor, whose 255 registers
  hold 32 elements and two sums for each, wait for fewer others at each row's barriers than blocks of 256 do,
  and do the same work with fewer instructions. Rows within a warp need no barriers, and go to registers
  without a detour through shared memory.
- Where each point takes many instructions, threads that wait for arithmetic need others that do not: half as
  many elements each.
- Code has each operation once per element of a thread, and compilers take time for each: where a point takes
  hundreds, threads have as many fewer (`code_length.py`).
- Where points read what their neighbours read, memory waits for loads from the cache: threads with many
  points share the arithmetic of positions, and small blocks share lines of cache that few others drive out.
- A point that is a step of several, each of its accesses 16 bytes wide, is work enough for a thread; two let
  threads share the arithmetic of positions, and larger blocks the rows that their neighbours read.
- Where every point loads a sector of its own, one point per thread is best: what counts is how many threads
  wait at a time.
- Rows in lanes of which some are empty: a warp alone has all of a row, and the same columns of many, which
  share what finds their elements; more warps wait for fewer loads each.
- A transpose needs both tile sides to span whole 32-byte sectors on both of its sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.kernel_source import Config
from coilwork_ir.target import Target
from coilwork_triton.launch.code_length import shortened
from coilwork_triton.launch.counted import counted
from coilwork_triton.launch.parameters import STAGES, Facts, config
from coilwork_triton.launch.pointwise import pointwise
from coilwork_triton.launch.reductions import looped, persistent, shared, walked
from coilwork_triton.launch.sorting import sorted_rows
from coilwork_triton.rules import Rule, RuleTable, always

# Elements of a row that `batch_invariant` reduces at a time.
FIXED_ROW: Final = 1024


def _rule(
    name: str,
    launches: Callable[[Facts, Target], list[Config]],
    why: str,
    matches: Callable[[Facts], bool],
    *,
    length: bool = True,
) -> Rule[Facts, Launches]:
    return Rule(
        name=name,
        matches=matches,
        answer=lambda facts: Launches(propose=launches, has_code_limit=length),
        why=why,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Proposes the launches of one kind of kernel; blocks with a `has_code_limit` shrink where a point takes
    hundreds of instructions.
    """

    propose: Callable[[Facts, Target], list[Config]]
    has_code_limit: bool


LAUNCHES: Final[RuleTable[Facts, Launches]] = RuleTable(
    rules=(
        _rule(
            "histogram",
            counted,
            "programs with many points update memory least",
            lambda facts: facts.bins > 0,
            length=False,
        ),
        _rule(
            "sorted-rows",
            sorted_rows,
            "threads exchange elements of a row, so that few with many elements each are best",
            lambda facts: facts.work.sort_key_bytes > 0,
            length=False,
        ),
        _rule(
            "row-loop",
            walked,
            "the next rows are on their way while some are reduced",
            lambda facts: "w" in facts.extents,
            length=False,
        ),
        _rule(
            "shared-rows",
            shared,
            "a program has one piece of a row in registers",
            lambda facts: facts.walk == "shared",
        ),
        _rule(
            "rows-in-registers",
            persistent,
            "16 to 32 elements per thread reach the bandwidth of a copy",
            lambda facts: facts.walk == "persistent",
        ),
        _rule(
            "long-rows",
            looped,
            "blocks are as long as enough loads in flight ask for",
            lambda facts: facts.walk == "looped",
        ),
        _rule("points", pointwise, "a thread moves most with a few loads of 16 bytes in flight", always),
    )
)


def propose(facts: Facts, target: Target, limit: int) -> tuple[Config, ...]:
    """At most `limit` candidates, best guess first. Every tile's block size is in `Config.meta`."""
    launches = LAUNCHES.answer(facts)
    found = launches.propose(facts, target)
    if launches.has_code_limit and not facts.work.scan_words:
        found = [shortened(one, facts, target) for one in found]
    return tuple(dict.fromkeys(found))[:limit]


def fixed(tiles: Iterable[str], target: Target, *, staged: bool) -> tuple[Config, ...]:
    """The one configuration of `batch_invariant` for reductions of `tiles`: a row per program, in blocks of
    one length.

    How threads share a block's sum follows from its shape, so no block may hold several rows, nor a whole row
    of some lengths alone. A short row wastes most of its block.
    """
    blocks = {tile: FIXED_ROW if tile == "r" else 1 for tile in tiles}
    one = config(blocks, 4, target)
    # a loop that data end has no stages
    return (replace(one, meta=(*one.meta, *(((STAGES, 1),) if staged else ()))),)
