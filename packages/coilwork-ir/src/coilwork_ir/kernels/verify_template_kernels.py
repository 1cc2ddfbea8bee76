"""Rules of kernels with a core: its ranges are the kernel's, its bodies fit, the stores are its epilogue.

How a generator refuses the core of a kernel that it has no template for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, get_extent, provably_eq
from coilwork_ir.kernels.nodes import (
    AttentionGradientCore,
    ConvolutionCore,
    Core,
    Kernel,
    Store,
    accumulate_of,
    get_ranges,
    list_result_ranges,
)
from coilwork_ir.kernels.rewrite import list_store_roots
from coilwork_ir.loops.convolutions import count_windows, list_summed_extents
from coilwork_ir.loops.verify_attention import ATTENTION_RULES, check_saved, check_weights
from coilwork_ir.scalar import (
    Const,
    Contraction,
    Load,
    Op,
    Parameter,
    Reduce,
    Scalar,
    Scan,
    Sort,
    index_value,
    iterate_postorder,
)
from coilwork_ir.target import Capabilities
from coilwork_ir.verification import Place, Rule

CORE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **{
            name: ATTENTION_RULES[name]
            for name in (
                "attention-axes",
                "attention-types",
                "attention-state",
                "attention-blocks",
                "attention-operands",
            )
        },
        "core-ranges": Rule(
            "the parallel ranges of a kernel with a core are those of what it makes, and the reduced ones "
            "those that it sums along, each once",
            "give the kernel the core's ranges and axes, and no others",
        ),
        "core-alone": Rule(
            "a kernel with a core combines nothing besides it, shares no rows, checks nothing, and writes no "
            "memory that it reads",
            "put the rest into a kernel of its own",
        ),
        "core-convolution": Rule(
            "a convolution makes one of image, weight and features of the other two, which have as many "
            "dimensions of space as there are windows",
            "name each of the three once, and give a window with a stride and a dilation of at least 1 for "
            "each dimension of space",
        ),
        "core-extents": Rule(
            "extents of image, weight, features and axes are those of one convolution",
            "pass extents that fit each other",
        ),
        "core-types": Rule(
            "a core multiplies floats, in a type that holds them, and gives its results in that type",
            "cast operands at the end of their bodies, and results in the stores",
        ),
        "core-stores": Rule(
            "stores know the results of the core at the parallel ranges; of a gradient each store is made of "
            "one result alone, at an index over ranges that it varies along",
            "read each result by its number, and add up in memory in a kernel of its own",
        ),
    }
)

CheckScalar = Callable[[Scalar, frozenset[Expr]], None]
"""Checks a scalar of a kernel, less its operands, over some ranges."""


def check_core(kernel: Kernel, core: Core, check: CheckScalar, place: Place) -> None:
    """`core` is that of `kernel`; `check` looks at what a scalar loads and which symbols it knows.

    Raises:
        VerifyError: the first rule that is broken.
    """
    if kernel.workspace or kernel.checks or kernel.aliasing:
        place.fail("core-alone", "there is a workspace, a check, or shared memory")
    stored = tuple(root for store in kernel.stores for root in list_store_roots(store))
    for value in iterate_postorder((*core.bodies, *stored)):
        if isinstance(value, Reduce | Contraction | Scan | Sort):
            place.fail("core-alone", f"there is a {type(value).__name__.lower()} besides")
    _check_ranges(kernel, core, place)
    if isinstance(core, ConvolutionCore):
        _check_convolution(core, check, place)
    else:
        if core.weights.form != "plain" or core.weights.dropout:
            place.fail("attention-state", "a core leaves nothing for its gradient but its results")
        check_weights(core.weights, check, place)
        if isinstance(core, AttentionGradientCore):
            check_saved(core.weights, core, check, place)
    for store in kernel.stores:
        _check_store(store, core, check, place)
    loaded = {v.buffer for v in iterate_postorder((*core.bodies, *stored)) if isinstance(v, Load)}
    for store in kernel.stores:
        if store.buffer in loaded:
            place.fail("core-alone", f"{store.buffer} is read and written")


def _check_ranges(kernel: Kernel, core: Core, place: Place) -> None:
    of_kernel = tuple(
        [r.symbol for r in kernel.ranges if r.kind == kind] for kind in ("parallel", "reduction")
    )
    for ours, theirs in zip(get_ranges(core), of_kernel, strict=True):
        if len(ours) != len(theirs) or frozenset(ours) != frozenset(theirs):
            shown = ", ".join(r.name for r in ours)
            place.fail(
                "core-ranges", f"the core has ({shown}), the kernel ({', '.join(r.name for r in theirs)})"
            )
    if any(r.kind == "sequential" for r in kernel.ranges):
        place.fail("core-ranges", "there are sequential ranges")


def _check_convolution(core: ConvolutionCore, check: CheckScalar, place: Place) -> None:
    named = {core.makes, *(role for role, _ in core.operands)}
    if len(named) != 3:
        place.fail("core-convolution", f"{core.makes} of {', '.join(role for role, _ in core.operands)}")
    rank = len(core.windows) + 2
    ranks = (len(core.ranges), *(len(body.ranges) for _, body in core.operands))
    if not core.windows or any(count != rank for count in ranks) or core.groups < 1:
        place.fail(
            "core-convolution", f"{len(core.windows)} windows, {ranks} dimensions, {core.groups} groups"
        )
    for window in core.windows:
        if min(window.stride, window.dilation) < 1 or min(window.padding, window.extra) < 0:
            place.fail("core-convolution", f"{window} moves or pads by no number of elements")
    seen = {*core.ranges, *core.axes}
    for _, body in core.operands:
        for own in body.ranges:
            if not own.is_symbol or own.extent is None or own in seen or own.name in {s.name for s in seen}:
                place.fail("core-convolution", f"{own!r} is no range of an operand's own")
            seen.add(own)
            check(index_value(get_extent(own)), frozenset())
        for value in iterate_postorder((body.value,)):
            check(value, frozenset(body.ranges))
        dtype, wide = body.value.dtype, core.accumulate
        fits = dtype is wide or dtype.itemsize < wide.itemsize
        if not dtype.is_float or not wide.is_float or not fits:
            place.fail("core-types", f"{dtype.text} is multiplied in {wide.text}")
    _check_extents(core, place)


def _check_extents(core: ConvolutionCore, place: Place) -> None:
    roles = core.roles
    features = [body for role, body in core.operands if role == "features"]
    image = [body for role, body in core.operands if role == "image"]
    of_features = features[0].ranges if features else core.ranges
    of_image = image[0].ranges if image else core.ranges
    pairs = [
        ("batch of image and features", of_image[0].extent, of_features[0].extent),
        ("features and those of the weight", of_features[1].extent, roles.features),
        ("channels of the image and of all groups", roles.channels, roles.group_channels * core.groups),
    ]
    summed = list_summed_extents(roles, core.groups, core.makes)
    if len(summed) != len(core.axes):
        place.fail("core-extents", f"{len(core.axes)} axes, {len(summed)} are summed along")
    pairs += [("an axis", axis.extent, extent) for axis, extent in zip(core.axes, summed, strict=True)]
    for window, size, taps, count in zip(core.windows, roles.space, roles.taps, roles.windows, strict=True):
        most = count_windows(window, size, taps)
        fewer, all_ = as_int(count), as_int(most)
        # elements of an image that no window reaches are 0 as a result, and add nothing
        if core.makes == "features" or fewer is None or all_ is None or fewer > all_:
            pairs.append(("windows and what fits the image", count, most))
    for what, mine, theirs in pairs:
        assert mine is not None and theirs is not None
        if mine is theirs or provably_eq(mine, theirs):
            continue
        if as_int(mine) is not None and as_int(theirs) is not None:
            place.fail("core-extents", f"{what}: {mine!r} and {theirs!r}")
    known = as_int(roles.features)
    if known is not None and known % core.groups:
        place.fail("core-extents", f"{known} features in {core.groups} groups")


def _check_store(store: Store, core: Core, check: CheckScalar, place: Place) -> None:
    results, wide = list_result_ranges(core), accumulate_of(core)
    parallel, _ = get_ranges(core)
    known: list[int] = []
    for value in iterate_postorder(list_store_roots(store)):
        if not isinstance(value, Parameter):
            check(value, frozenset(parallel))
            continue
        known.append(value.position)
        if value.position >= len(results):
            place.fail("core-stores", f"result {value.position} of {len(results)}")
        if value.dtype is not wide:
            place.fail("core-types", f"result {value.position} is {wide.text}, read as {value.dtype.text}")
    touched = {s for s in store.index.free_symbols if s.extent is not None}
    if not isinstance(core, AttentionGradientCore):
        for s in sorted(touched - frozenset(parallel), key=lambda s: s.name):
            place.fail("core-stores", f"{store.buffer} is stored at places along {s.name}")
        return
    if len(known) != 1 or store.mode != "store" or store.mask is not None or store.indirect:
        place.fail("core-stores", f"{store.buffer} holds no one gradient")
    if any(not isinstance(value, Op | Const | Parameter) for value in iterate_postorder((store.value,))):
        place.fail("core-stores", f"what {store.buffer} holds is not made of its gradient alone")
    for s in sorted(touched - results[known[0]], key=lambda s: s.name):
        place.fail(
            "core-stores", f"{store.buffer} is stored at places along {s.name}, which its gradient is not"
        )


def check_core_taken(kernel: Kernel, capabilities: Capabilities, generator: str) -> None:
    """Refuse `kernel` if it has a core of a kind that is not declared in `capabilities` of the `generator`.

    Raises:
        EmitError: named by the kind.
    """
    if kernel.core is None or kernel.core.kind in capabilities.cores:
        return
    raise EmitError(
        kernel.core.kind,
        f"{generator} has no template for the core `{kernel.core.kind}`",
        node=f"kernel @{kernel.name}",
        origins=kernel.origins,
        reason="its declared capabilities (`Capabilities.cores`) do not name it",
        remedy="schedule for what the generator declares, so that a library or loops compute it",
    )
