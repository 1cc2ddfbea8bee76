"""The order of the scheduler's passes: what must come before what, with a reason for each place.

`pipeline.PASSES` runs them; a test holds it to `ORDER`.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.passes import Before

ORDER: Final = (
    Before(
        "externalize",
        "separate",
        "a sort that becomes a call may need its operand in memory: a node like others",
    ),
    Before(
        "separate",
        "contract",
        "a product's operand that is overwritten later is read where it was, through its views",
    ),
    Before(
        "separate",
        "attend",
        "an attention's operand that is overwritten later is read where it was",
    ),
    Before("attend", "contract", "an attention that is written out is made of products like others"),
    Before("contract", "dead", "views of operands that loads see through are read by nobody any more"),
    Before("contract", "inline", "what widens an operand may be computed inside the sum of products"),
    Before("separate", "dead", "a temporary for a value that nobody needs goes with what reads it"),
    Before(
        "separate",
        "inline",
        "a value read before its memory is overwritten must not move into the overwriter",
    ),
    Before("dead", "inline", "a consumer that nobody needs would count against inlining into the others"),
    Before(
        "inline",
        "dead-after-inline",
        "a producer that all of its consumers inline is read by nobody any more",
    ),
    Before("contract", "absorb", "which nodes a template computes is known then"),
    Before(
        "dead-after-inline",
        "absorb",
        "of a chain that inlining makes one node all is taken at once, and who reads it counts",
    ),
    Before(
        "absorb", "scale-sums", "a sum that a template's kernel reads may have lost its scale to the node"
    ),
    Before("absorb", "layouts", "what a kernel computes itself is in no memory"),
    Before("absorb", "fuse", "what is a part of a template's kernel joins no other"),
    Before(
        "inline", "one-hot", "that all terms but one are zero shows when what makes them is in the reduction"
    ),
    Before("inline", "scale-sums", "a weight's scale shows when what widens it is in the sum"),
    Before("dead-after-inline", "scale-sums", "a sum that nobody needs is not looked at"),
    Before(
        "scale-sums", "one-hot", "a sum that lost a scale is read by one node more, whatever becomes of it"
    ),
    Before("scale-sums", "split", "the scale is for the whole sum, not for its pieces"),
    Before("dead-after-inline", "one-hot", "a sum that nobody needs is not looked at"),
    Before(
        "inline",
        "turn-scans",
        "who reads a scan from the end shows when reversals are computed where they are read",
    ),
    Before(
        "dead-after-inline", "turn-scans", "a reversal that nobody needs any more would read the scan, too"
    ),
    Before("inline", "write-out", "what is inlined into a sum tells whether its terms are computed or read"),
    Before("one-hot", "write-out", "of a sum that is one term the others are not written out"),
    Before("write-out", "turn-scans", "a sum that is written out may be a scan's reader like any other"),
    Before("write-out", "split", "a sum that is written out is no reduction to cut"),
    Before("one-hot", "turn-scans", "what is read is what is left of sums of one term"),
    Before("turn-scans", "split-scans", "a scan is cut in pieces in the direction that it runs in"),
    Before(
        "one-hot", "split-scans", "what is scanned may be a sum of one term, and moves along with its pieces"
    ),
    Before("one-hot", "split", "a sum that is one term is no reduction to cut"),
    Before(
        "dead-after-inline",
        "split-scans",
        "what is inlined into a scan is cut in pieces with it, and a scan that nobody needs is not cut",
    ),
    Before("split-scans", "split", "the reductions of a scan's pieces are reductions like any others"),
    Before(
        "split-scans",
        "split-rows",
        "the reductions of a scan's pieces are reductions of rows like any others",
    ),
    Before("inline", "linear-sums", "what is inlined into a sum tells which statistics it waits for"),
    Before("one-hot", "linear-sums", "a sum that is one term is no sum of many"),
    Before("turn-scans", "linear-sums", "reversals that are read from the end are none"),
    Before(
        "dead-after-inline", "layouts", "what is inlined is in no memory, and tells who reads what in the end"
    ),
    Before("linear-sums", "layouts", "sums that others take the place of read other memory"),
    Before("layouts", "split-scans", "how a scan is cut depends on the steps with which it is read"),
    Before("layouts", "split-rows", "how sums are cut depends on how their memory lies"),
    Before("layouts", "split", "how sums are cut depends on how their memory lies"),
    Before("linear-sums", "split-scans", "a scan's pieces have statistics like any others"),
    Before(
        "linear-sums", "split-rows", "a sum that does not wait for statistics is not cut along their rows"
    ),
    Before("linear-sums", "split", "what takes the place of a sum is cut in pieces like any others"),
    Before("one-hot", "split-rows", "a sum that is one term is no reduction to cut"),
    Before("inline", "split-rows", "what is inlined into a reduction tells which statistics it needs"),
    Before("split-rows", "split", "the sum of the rows' sums is a reduction like any others"),
    Before(
        "dead-after-inline",
        "split",
        "a reduction that nobody needs would count as a sibling of others",
    ),
    Before(
        "inline",
        "split",
        "what is inlined into a reduction is cut in pieces with it, and tells how its memory lies",
    ),
    Before("split", "fuse", "reductions of pieces, and of their results, find kernels like any others"),
    Before("inline", "fuse", "fusion weighs what stages read and compute, which inlining changes"),
    Before(
        "dead-after-inline",
        "fuse",
        "a producer that is gone must take no place in a kernel, and link no others",
    ),
    Before("fuse", "build", "ranges, tiles and arguments are those of whole kernels"),
    Before("build", "order", "what a result may lie in the memory of, and so what is freed, kernels say"),
    Before("order", "share-launches", "only what the order leaves free to run together may share a launch"),
    Before("share-launches", "open-sizes", "members of a shared launch keep the sizes that share it out"),
    Before("open-sizes", "name-blocks", "blocks are named for kernels as they will be launched"),
    Before("name-blocks", "assemble", "kernels that are to run in other blocks are others"),
    Before("open-sizes", "assemble", "kernels that have been made alike are one in the schedule"),
)
