"""Mappings: text round trip, equality, open numbers, versions; and for each directive a legal and an illegal
mapping.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coilwork_ir.errors import ParseError, VerifyError
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import (
    DIRECTIVES,
    Condition,
    Directive,
    Guard,
    Lanes,
    Limit,
    Mapping,
    Nest,
    Open,
    Tile,
    Version,
    Versions,
    find_fault,
    format_mapping,
    format_versions,
    make_single_version,
    parse_mapping,
    parse_versions,
    verify_mapping,
    verify_versions,
)
from coilwork_ir.mapping.directive import Slot, parse_template


def kernel_text(ranges: str, args: str, body: str, extra: str = "", sizes: str = "") -> str:
    return f"kernel @k fast {{\n{sizes}\n{ranges}\n{args}\n{extra}\nbody {{\n{body}\n}}\n}}"


SOFTMAX = kernel_text(
    "range x0: `64` parallel\nrange r0: `1000` reduction",
    "arg in0: f32 in span `64000`\narg out0: f32 out span `64000`",
    """t0 = load %in0[1000*x0 + r0] : f32
    t1 = reduce max 0 (t0) over (r0)
    t2 = sub(t0, t1)
    t3 = exp(t2)
    t4 = reduce sum 0 (t3) over (r0)
    t5 = div(t3, t4)
    store %out0[1000*x0 + r0] = t5""",
)
IN_PLACE = kernel_text(
    "range x0: `64` parallel\nrange r0: `1000` reduction",
    "arg io0: f32 inout span `64000`",
    """t0 = load %io0[1000*x0 + r0] : f32
    t1 = load %io0[r0] : f32
    t2 = add(t0, t1)
    t3 = reduce sum 0 (t2) over (r0)
    store %io0[1000*x0 + r0] = t2
    store %io0[1000*x0] = t3""",
)
OPEN = kernel_text(
    "range x0: `n0` parallel\nrange r0: `n1` reduction",
    "arg in0: f32 in span `n0*n1`\narg out0: f32 out span `n0`",
    "t0 = load %in0[n1*x0 + r0] : f32\nt1 = reduce sum 0 (t0) over (r0)\nstore %out0[x0] = t1",
    sizes="size n0 in [1, 65536]\nsize n1 in [1, inf]",
)
WALKED = kernel_text(
    "range x0: `4` parallel\nrange w0: `8` sequential\nrange r0: `1000` reduction",
    "arg in0: f32 in span `32000`\narg io0: f32 inout span `32`\narg out0: f32 out span `4000`",
    """t0 = load %in0[8000*x0 + 1000*w0 + r0] : f32
    t1 = load %io0[8*x0 + w0] : f32
    t2 = reduce sum 0 (t0) over (r0)
    t3 = add(t1, t2)
    t4 = reduce sum 0 (t0) over (w0)
    store %io0[8*x0 + w0] = t3
    store %out0[1000*x0 + r0] = t4""",
)
ADDED_TO = kernel_text(
    "range x0: `64` parallel\nrange r0: `1000` reduction",
    "arg in0: f32 in span `64000`\narg io0: f32 inout span `64`",
    """t0 = load %in0[1000*x0 + r0] : f32
    t1 = load %io0[x0] : f32
    t2 = reduce sum 0 (t0) over (r0)
    t3 = add(t1, t2)
    store %io0[x0] = t3""",
)
LOOKED_UP = kernel_text(
    "range x0: `64` parallel",
    "arg in0: i64 in span `64`\narg out0: i64 out span `64`",
    "t0 = load %in0[x0] : i64\nt1 = index [3*@0] using (t0)\nstore %out0[x0] = t1",
)
COPY = kernel_text(
    "range x0: `32` parallel\nrange x1: `48` parallel\nrange x2: `64` parallel\nrange x3: `2` parallel",
    "arg in0: f32 in span `196608`\narg out0: f32 out span `196608`",
    (
        "t0 = load %in0[x1 + 48*x0 + 1536*x2 + 98304*x3] : f32\nstore %out0[48*x0 + x1 + 1536*x2 + "
        "98304*x3] = t0"
    ),
)
DOUBLED = COPY.replace("store %out0[48*x0", "t1 = add(t0, t0)\nstore %out0[48*x0").replace(
    " = t0\n}", " = t1\n}"
)
SCAN = kernel_text(
    "range x0: `4` parallel\nrange r0: `4096` reduction",
    "arg in0: f32 in span `16384`\narg out0: f32 out span `16384`\narg io0: i64 inout span `17`",
    "t0 = load %in0[4096*x0 + r0] : f32\nt1 = scan sum 0 (t0) along r0 \nstore %out0[4096*x0 + r0] = t1",
    extra="workspace io0",
)
BOTH_WAYS = SCAN.replace("store", "t2 = scan sum 0 (t0) along r0 reverse\nt3 = add(t1, t2)\nstore").replace(
    " = t1\n", " = t3\n"
)
SCAN_AND_SUM = SCAN.replace("store", "t2 = reduce sum 0 (t1) over (r0)\nt3 = add(t1, t2)\nstore").replace(
    " = t1\n", " = t3\n"
)
SCAN_BY_FUNCTION = SCAN.replace(
    "scan sum 0", "scan by { t0 = parameter 0 : f32 t1 = parameter 1 : f32 t2 = add(t0, t1) yield (t2) } 0"
)
SORT = kernel_text(
    "range x0: `4` parallel\nrange r0: `512` reduction",
    "arg in0: f32 in span `2048`\narg out0: f32 out span `2048`",
    "t0 = load %in0[512*x0 + r0] : f32\nt1 = sort 0 (t0) along r0\nstore %out0[512*x0 + r0] = t1",
)
COUNTS = kernel_text(
    "range x0: `4096` parallel",
    "arg in0: i64 in span `4096`\narg io0: i64 inout span `256`\narg io1: f32 inout span `256`",
    """t0 = load %in0[x0] : i64
    t1 = const 1 : i64
    t2 = const 1.0 : f32
    store %io0[@0] using (t0) add = t1
    store %io1[@0] using (t0) add = t2""",
)
PRODUCT = kernel_text(
    "range x0: `128` parallel\nrange x1: `128` parallel\nrange r0: `64` reduction",
    "arg in0: bf16 in span `8192`\narg in1: bf16 in span `8192`\narg out0: f32 out span `16384`",
    """t0 = load %in0[64*x0 + r0] : bf16
    t1 = load %in1[128*r0 + x1] : bf16
    t2 = contract (t0, t1) over (r0) : f32
    store %out0[128*x0 + x1] = t2""",
)
FETCHED = PRODUCT.replace("span `8192`", "span `8192` aligned")
LARGE = kernel_text(
    "range x0: `5000000000` parallel",
    "arg in0: f32 in span `5000000000`\narg out0: f32 out span `5000000000`",
    "t0 = load %in0[x0] : f32\nt1 = index [x0]\nt2 = cast(t1) : f32\nt3 = add(t0, t2)\nstore %out0[x0] = t3",
)

# keyword: (kernel, legal mapping, illegal mapping, what the error says)
RULES: dict[str, tuple[str, str, str, str]] = {
    "tile": (SOFTMAX, "tile x0 by 4", "tile r0 by 4", "reduction range"),
    "flat": (COPY, "tile x0 by 4 flat", "flat", "no range is tiled"),
    "resident": (COPY, "tile x0 by 4 flat resident 132", "tile x0 by 4 resident 132", "not flat"),
    "keep": (SOFTMAX, "keep r0 by 1024", "keep r0 by 512", "1000 points"),
    "loop": (SOFTMAX, "loop r0 by 256 stages 3", "loop x0 by 256", "parallel range"),
    "sequential": (COPY, "sequential x0", "tile x0 by 4 sequential x0", "x0 is tiled"),
    "share": (SCAN, "share r0 by 1024 through io0", "share r0 by 1024 through in0", "not the workspace"),
    "coarsen": (DOUBLED, "coarsen x1 by 1", "coarsen x1 by 4", "not those of 4 neighbours"),
    "straddle": (COPY, "tile x0, x1 by 32 straddle x1 2", "tile x0, x1 by 64 straddle x1 2",
    "more than 2 rows"),
    "lanes": (SOFTMAX, "keep r0 by 1024 lanes r0, x0 by 8", "keep r0 by 1000 lanes r0 by 16",
    "do not divide"),
    "runs": (SCAN, "loop r0 by 256 runs r0 by 32", "loop r0 by 256 runs r0 by 256", "fewer than two runs"),
    "vector": (SOFTMAX, "vector r0 by 8 shifted tail peel", "vector x0 by 8", "unit stride"),
    "warps": (SOFTMAX, "warps 8", "warps 6", "no power of two"),
    "threads": (COPY, "threads over x0, x1", "sequential x0 threads over x0", "one after the other"),
    "block": (COPY, "threads over x1 block x1 by 16", "threads over x0 block x1 by 16", "do not share x1"),
    "grain": (COPY, "grain 65536 at 3", "grain 65536 at 0", "less than 1"),
    "join": (COPY, "threads over x0 join", "join", "threads share no range"),
    "accumulators": (SOFTMAX, "accumulators 64 pass 0", "accumulators 48 pass 0", "no power of two"),
    "fold": (
        SOFTMAX,
        "accumulators 32 pass 0 fold r0 every 64 pass 0",
        "accumulators 32 pass 0 fold r0 every 16 pass 0",
        "whole groups",
    ),
    "peel": (
        SOFTMAX,
        "accumulators 32 pass 0 peel r0 last 8 pass 0",
        "accumulators 64 pass 0 peel r0 last 8 pass 0",
        "whole groups",
    ),
    "invariant": (SOFTMAX, "invariant 16 by 4096", "invariant 16 by 100", "do not divide"),
    "transpose": (COPY, "transpose x1, x0 by 64, 64 moves", "transpose x1, x1 by 64, 64", "occurs twice"),
    "privatise": (COUNTS, "privatise io0 in 256 bins", "privatise io1 in 256 bins", "depend on their order"),
    "sort": (SORT, "sort r0 by 32 width 4", "sort x0 by 32 width 4", "parallel range"),
    "select": (SORT, "select r0 first 16", "select r0 first 0", "less than 1"),
    "evict": (SOFTMAX, "evict in0 first", "evict out0 first", "not loaded"),
    "prefetch": (SOFTMAX, "prefetch in0, out0 pass 1", "prefetch in1 pass 1", "not known ahead"),
    "save": (SOFTMAX, "save t3 pass 1", "save t9 pass 1", "no value t9"),
    "index": (SOFTMAX, "index i32", "index i32", "5000000000"),
    "values": (LARGE, "index i32 promised values i32 promised", "index i32 promised values i32",
    "leave 32 bits"),
    "unit": (PRODUCT, "unit mma", "unit mma", "no contraction"),
    "fetch": (FETCHED, "fetch in0, in1", "fetch in0, in1", "in0 is no factor"),
    "specialise": (
        FETCHED,
        "tile x0 by 128 flat resident 4 fetch in0, in1 specialise 2 consumers pingpong",
        "tile x0 by 128 flat resident 4 fetch in0 specialise 2 consumers",
        "threads load in1",
    ),
    "order": (PRODUCT, "tile x1 by 64 tile x0 by 64 order x0, x1 grouped 8", "order x0 grouped 8",
    "not tiled"),
    "functions": (SOFTMAX, "functions vector", "invariant 16 by 4096 functions vector", "place would decide"),
    "contract": (SOFTMAX, "contract", "contract", "eager numerics"),
    "limit": (SOFTMAX, "warps ?w in 4 8 limit `32*w` at most `128`", "limit `w` at most `8`",
    "no open number"),
    "choose": (
        SOFTMAX,
        "warps ?w in 4 8 tile x0 by ?x in 1 2 choose w, x as 4, 2 choose w, x as 8, 1",
        "warps ?w in 4 8 choose w as 2",
        "never 2",
    ),
}  # fmt: skip
# Where the illegal mapping is of another kernel.
OTHERS = {
    "index": LARGE,
    "unit": SOFTMAX,
    "fetch": PRODUCT,
    "contract": SOFTMAX.replace("@k fast", "@k eager"),
}


def test_every_directive_has_a_legal_and_an_illegal_mapping() -> None:
    assert set(RULES) == {kind.keyword() for kind in DIRECTIVES}


@pytest.mark.parametrize("keyword", RULES)
def test_a_rule_lets_pass_what_is_legal_and_names_the_directive_that_is_not(keyword: str) -> None:
    text, legal, illegal, reason = RULES[keyword]
    kernel = parse_kernel(text)
    verify_mapping(kernel, parse_mapping(legal))
    with pytest.raises(VerifyError, match=reason) as caught:
        verify_mapping(parse_kernel(OTHERS.get(keyword, text)), parse_mapping(illegal))
    assert caught.value.code == f"mapping-{keyword}"
    assert caught.value.node.startswith(keyword)


@pytest.mark.parametrize(
    ("text", "mapping", "reason"),
    [
        (SOFTMAX, "keep r0 by 1024 loop r0 by 256", "how they are walked"),
        (OPEN, "keep r0 by 4096", "any number of points"),
        (IN_PLACE, "loop r0 by 256 stages 2", "earlier ones change"),
        (IN_PLACE, "sequential x0 stages 2", "earlier ones change"),
        (WALKED, "sequential w0 stages 2 loop r0 by 128", "earlier ones change"),
        (WALKED.replace("8*x0 + w0] : f32", "8*x0] : f32"), "sequential w0 stages 2 keep r0 by 1024",
        "earlier"),
        (WALKED, "sequential w0 keep r0 by 1024 invariant 1024 by 1024", "in pieces"),
        (SCAN, "share r0 by 1024 through io0 lanes r0 by 3", "do not divide"),
        (SCAN, "share r0 by 1024 through io0 runs r0 by 1024", "fewer than two runs"),
        (SCAN, "runs r0 by 32", "in no block"),
        (LOOKED_UP, "index i32 values i32 promised", "data decide"),
        (SORT, "loop r0 by 128", "whole rows"),
        (COPY, "tile x0 by 1 tile x1 by 1 tile x2 by 1 tile x3 by 1", "4 grid axes"),
        (COPY, "tile x0 by 1 tile x0 by 2", "x0 already"),
        (COPY, "tile x0, x1 by 64 padded 32", "longer than 32 lanes"),
        (SOFTMAX, "share r0 by 64 through in0", "there is none"),
        (SCAN, "share r0 by 512 through io0", "17 elements of 33"),
        (SCAN, "share r0 by ?n in 512 1024 through io0", "17 elements of 33"),
        (SCAN.replace("workspace io0", ""), "share r0 by 1024 through io0", "not the workspace"),
        (SCAN.replace(" = t1", " add = t1").replace("f32 out ", "f32 inout "), "share r0 by 1024 through io0",
        "with memory"),
        (SCAN.replace("`4` parallel", "`n0` parallel").replace("range x0", "size n0 in [1, 4]\nrange x0"),
        "share r0 by 1024 through io0", "is not known"),
        (BOTH_WAYS, "share r0 by 1024 through io0", "one direction"),
        (SCAN_AND_SUM, "share r0 by 1024 through io0", "a reduce needs all"),
        (SCAN_BY_FUNCTION, "share r0 by 1024 through io0", "no word to tell"),
        (SOFTMAX, "unit fma", "no contraction"),
        (SOFTMAX, "vector x0 vector r0", "the vector already"),
        (SOFTMAX, "accumulators 4 pass 0 accumulators 8 pass 0", "pass 0 already"),
        (COPY, "accumulators 4 pass 0", "no range is reduced"),
        (COPY, "threads over x0, x1 together block x0 by 4", "along one range"),
        (SOFTMAX, "transpose r0, x0 by 8, 8 moves", "not just what is loaded"),
        (SCAN, "transpose r0, x0 by 8, 8", "in order"),
        (COPY, "tile y9 by 4", "no range y9"),
        (PRODUCT.replace("bf16", "f32").replace("cast(t0)", "cast(t0)"), "unit mma", "exactly"),
    ],
)  # fmt: skip
def test_a_mapping_that_does_not_fit_is_refused_with_its_reason(text: str, mapping: str, reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        verify_mapping(parse_kernel(text), parse_mapping(mapping))


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        (SCAN, "share r0 by 1024 through io0 lanes r0 by 4 runs r0 by 32"),
        (SCAN, "keep r0 by 4096 runs r0 by 32"),
        (WALKED, "sequential w0 stages 2 keep r0 by 1024"),
        (ADDED_TO, "loop r0 by 128 stages 3"),
    ],
)
def test_what_else_is_legal(text: str, mapping: str) -> None:
    verify_mapping(parse_kernel(text), parse_mapping(mapping))


def test_nests_do_every_store_and_check_once() -> None:
    kernel = parse_kernel(IN_PLACE)
    verify_mapping(kernel, parse_mapping("nest store 1: threads over x0 nest store 0: vector x0"))
    for nests in (
        "nest store 0: vector x0",
        "nest store 0, store 0, store 1:",
        "nest check 0: nest store 0, store 1:",
    ):
        with pytest.raises(VerifyError) as caught:
            verify_mapping(kernel, parse_mapping(nests))
        assert caught.value.code == "mapping"
    with pytest.raises(VerifyError) as caught:
        verify_mapping(kernel, parse_mapping("nest store 0, store 1: block x0 by 4"))
    assert caught.value.code == "mapping-block"


def test_a_nest_that_only_stores_may_share_ranges_that_another_reduces_along() -> None:
    kernel = parse_kernel(SOFTMAX.replace("store %out0[1000*x0 + r0] = t5", "store %out0[1000*x0 + r0] = t3"))
    copies = SOFTMAX.replace("t1 = reduce max 0 (t0) over (r0)\n", "").replace("sub(t0, t1)", "sub(t0, t0)")
    with pytest.raises(VerifyError, match="reduction range"):
        verify_mapping(kernel, parse_mapping("nest store 0: threads over x0, r0"))
    plain = copies.replace("t4 = reduce sum 0 (t3) over (r0)\n", "").replace("div(t3, t4)", "div(t3, t0)")
    verify_mapping(parse_kernel(plain), parse_mapping("nest store 0: threads over x0, r0"))


# Text


def _value(hint: Any, slot: Slot) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["x0", "x1", "r0", "in0", "out0", "t12"])
    wholes = st.integers(0, 1 << 20)
    choices = st.builds(
        Open, st.sampled_from(["rows", "XBLOCK"]), st.lists(wholes, min_size=1, max_size=4).map(tuple)
    )
    n, m = symbol("rows", lo=1), symbol("XBLOCK", lo=1)
    match slot.kind:
        case "names":
            return st.lists(names, min_size=1, max_size=3).map(tuple)
        case "name":
            return names
        case "whole":
            return wholes
        case "wholes":
            return st.lists(wholes, min_size=1, max_size=3).map(tuple)
        case "number":
            return wholes | choices
        case "numbers":
            return st.lists(wholes | choices, min_size=1, max_size=3).map(tuple)
        case "flag":
            return st.booleans()
        case "expr":
            return st.sampled_from([n, 4 * n + m, n * m // 8, as_expr(64)])
    assert set(slot.kind.split("|")) <= set(get_args(hint)), slot
    return st.sampled_from(slot.kind.split("|"))


def _slots(kind: type[Directive]) -> list[Slot]:
    flat: list[Any] = []
    for item in parse_template(kind.TEMPLATE):
        flat += getattr(item, "items", (item,))
    return [item for item in flat if isinstance(item, Slot)]


def _directives(kind: type[Directive]) -> st.SearchStrategy[Directive]:
    hints = get_type_hints(kind)
    optional = {f.name for f in fields(kind) if f.default is not MISSING}
    slots = _slots(kind)
    assert {slot.field for slot in slots} == {f.name for f in fields(kind)}
    needed = {s.field: _value(hints[s.field], s) for s in slots if s.field not in optional}
    more = {s.field: _value(hints[s.field], s) for s in slots if s.field in optional}
    return st.fixed_dictionaries(needed, optional=more).map(lambda given: kind(**given))


any_directive = st.one_of([_directives(kind) for kind in DIRECTIVES])
several = st.lists(any_directive, max_size=5).map(tuple)
nests = st.builds(
    Nest,
    stores=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    check=st.none() | st.integers(0, 9),
    directives=several,
)
mappings = st.builds(Mapping, directives=several, nests=st.lists(nests, max_size=3).map(tuple))
S0, S1 = symbol("s0", lo=1), symbol("s1", lo=2, hi=4096)
guards = st.sampled_from(
    [
        Guard((Condition(S1, "<=", as_expr(4096)), Condition(S1 % 16, "==", as_expr(0)))),
        Guard((Condition(S0 * S1, "<=", as_expr(2**31)),)),
    ]
)
versions = st.builds(
    lambda several, last: Versions(
        kernel="softmax_a1b2",
        target="cuda",
        versions=(
            *(Version(guard=g, mapping=m) for g, m in several),
            Version(guard=None, mapping=last),
        ),
    ),
    st.lists(st.tuples(guards, mappings), max_size=2),
    mappings,
)


@settings(max_examples=300, deadline=None)
@given(mappings)
def test_mappings_print_and_parse_back(mapping: Mapping) -> None:
    text = format_mapping(mapping)
    assert parse_mapping(text) == mapping
    assert format_mapping(parse_mapping(text)) == text


@settings(max_examples=100, deadline=None)
@given(versions)
def test_versions_print_and_parse_back(given_: Versions) -> None:
    text = format_versions(given_)
    assert parse_versions(text, (S0, S1)) == given_
    assert format_versions(parse_versions(text, (S0, S1))) == text


def test_text_that_is_no_mapping_is_refused_at_its_place() -> None:
    for text in ("tile x0", "tile x0 by", "warps x", "evict in0 sometimes", "fold x0 every 4", "hover x0"):
        with pytest.raises(ParseError):
            parse_mapping(text)


# Open numbers


def test_an_open_mapping_closes_within_its_limits() -> None:
    text = "tile x0 by ?rows in 1 2 4 lanes x0 by 1 warps ?warps in 4 8 limit `rows*warps` at most `16`"
    mapping = parse_mapping(text)
    assert not mapping.is_closed
    assert mapping.open_numbers == (Open("rows", (1, 2, 4)), Open("warps", (4, 8)))
    half = mapping.close({"rows": 4})
    assert half.open_numbers == (Open("warps", (4, 8)),)
    assert format_mapping(half.close({"warps": 4})) == "tile x0 by 4\nlanes x0 by 1\nwarps 4"
    assert mapping.close({"rows": 4, "warps": 4}).find(Tile) == Tile(ranges=("x0",), by=4)
    for wrong in ({"rows": 3}, {"rows": 4, "warps": 8}):
        with pytest.raises(ValueError, match=r"rows"):
            mapping.close(wrong)


def test_numbers_that_are_chosen_together_close_in_the_listed_ways() -> None:
    text = """tile x0 by ?rows in 1 2 4 warps ?warps in 4 8 contract
    choose rows, warps as 1, 8 choose rows, warps as 4, 4"""
    mapping = parse_mapping(text)
    assert format_mapping(mapping.close({"rows": 4, "warps": 4})) == "tile x0 by 4\nwarps 4\ncontract"
    assert mapping.allows({"rows": 4}) and not mapping.allows({"rows": 2})
    with pytest.raises(ValueError, match="breaks a limit"):
        mapping.close({"rows": 1, "warps": 4})
    twice = verify_fault("warps ?w in 4 8 choose w as 4, 8")
    assert twice is not None and "2 values for 1 numbers" in twice


def test_the_first_choice_has_the_first_value_of_each_number() -> None:
    mapping = parse_mapping("tile x0 by ?x in 4 1 2 warps ?w in 8 4 limit `32*w` at most `512*x`")
    assert format_mapping(mapping.first_choice) == "tile x0 by 4\nwarps 8"
    closed = parse_mapping("tile x0 by 4")
    assert closed.first_choice == closed


def verify_fault(text: str) -> str | None:
    fault = find_fault(parse_kernel(SOFTMAX), parse_mapping(text))
    return None if fault is None else fault[1]


def test_a_directive_is_legal_if_some_choice_of_its_numbers_is() -> None:
    kernel = parse_kernel(SOFTMAX)
    verify_mapping(kernel, parse_mapping("tile x0 by ?x in 1 2 4 lanes x0 by ?n in 4 8"))
    with pytest.raises(VerifyError, match="do not divide"):
        verify_mapping(kernel, parse_mapping("tile x0 by ?x in 1 2 lanes x0 by ?n in 4 8"))


# Versions


def _open_kernel() -> Kernel:
    return parse_kernel(OPEN)


def test_a_version_is_legal_for_the_sizes_of_its_guard() -> None:
    kernel = _open_kernel()
    text = """mapping @k for cuda {
      when `n1 <= 4096` and `n1 % 16 == 0`:
        tile x0 by 1 keep r0 by 4096 index i32
      otherwise:
        tile x0 by 1 loop r0 by 1024 index i64
    }"""
    found = parse_versions(text, kernel.sizes)
    verify_versions(kernel, found)
    assert found.choose({"n0": 3, "n1": 1024}) is found.versions[0].mapping
    assert found.choose({"n0": 3, "n1": 1025}) is found.general
    assert found.choose({"n0": 3, "n1": 8192}) is found.general
    with pytest.raises(VerifyError, match="any number of"):
        verify_versions(kernel, parse_versions(text.replace("n1 <= 4096` and `", ""), kernel.sizes))


def test_a_guard_that_never_holds_is_one_away() -> None:
    """However far it is: that may be more than 64 bits hold, and whoever evaluates it has no more."""
    size = symbol("n0", lo=0)
    far = Condition(left=size + (2**63 - 1), relation="<=", right=as_expr(2**31))
    near = Condition(left=size, relation="<=", right=as_expr(7))
    assert Guard((near, far, far)).distance is as_expr(1)
    assert Guard((near,)).holds({"n0": 7}) and not Guard((near,)).holds({"n0": 8})


def test_values_that_are_promised_are_promised_by_the_guard() -> None:
    text = OPEN.replace("t1 = reduce sum 0 (t0) over (r0)", "t2 = index [n1*x0 + r0] \nt3 = cast(t2) : f32\n"
        "t4 = add(t0, t3)\nt1 = reduce sum 0 (t4) over (r0)")  # fmt: skip
    kernel = parse_kernel(text)
    n0, n1 = kernel.sizes
    mapping = parse_mapping("index i32 promised values i32 promised")

    def for_sizes(*conditions: Condition) -> Versions:
        last = Version(guard=None, mapping=Mapping())
        return Versions(
            kernel="k", target="cuda", versions=(Version(guard=Guard(conditions), mapping=mapping), last)
        )

    most = as_expr(2**31 - 1)
    fits = Condition(n0 * n1 + n1, "<=", most)
    verify_versions(kernel, for_sizes(fits))
    verify_versions(kernel, for_sizes(fits, Condition(n1 % 16, "==", as_expr(0))))
    verify_versions(kernel, for_sizes(Condition(n1, "<=", as_expr(1024))))
    for wrong in (Condition(n0 * n1 + n1, "<=", most + most), Condition(n1 % 16, "==", as_expr(0))):
        with pytest.raises(VerifyError, match="does not say") as caught:
            verify_versions(kernel, for_sizes(wrong))
        assert caught.value.code == "mapping-values"


def test_the_last_version_alone_is_for_all_sizes() -> None:
    kernel = _open_kernel()
    plain = make_single_version("k", "cuda", Mapping())
    verify_versions(kernel, plain)
    guarded = Version(guard=Guard((Condition(kernel.sizes[1], "<=", as_expr(64)),)), mapping=Mapping())
    foreign = Version(guard=Guard((Condition(S0, "<=", as_expr(64)),)), mapping=Mapping())
    for wrong in ((guarded,), (*plain.versions, *plain.versions), (foreign, *plain.versions), ()):
        with pytest.raises(VerifyError) as caught:
            verify_versions(kernel, Versions(kernel="k", target="cuda", versions=wrong))
        assert caught.value.code == "mapping-versions"


def test_equal_mappings_are_equal_values() -> None:
    one = Mapping(directives=(Lanes(ranges=("r0", "x0"), by=8), Limit(left=S0, right=as_expr(4))))
    assert one == Mapping(directives=(Lanes(ranges=("r0", "x0"), by=8), Limit(left=S0, right=as_expr(4))))
    assert hash(one) == hash(Mapping(directives=one.directives))
    assert one != Mapping(directives=one.directives[:1])


def test_a_directive_ends_before_one_that_begins_with_its_word() -> None:
    text = "select x0 first 4\nshare x0 by 2 through io0"
    assert format_mapping(parse_mapping(text)) == text
