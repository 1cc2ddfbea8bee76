"""Equal regions of sequences, and the forms of nodes that they are found by."""

from __future__ import annotations

from dataclasses import replace

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.loops import Extern, Pointwise
from coilwork_ir.loops.node_forms import describe_node, rename_node
from coilwork_ir.repetition import Entry, find_repetition
from coilwork_ir.scalar import const, load, op

FORMS = "abcdefghij"


def make_entries(layers: int, *, reads: dict[int, str]) -> list[Entry]:
    """Chains of ten values for each layer, which starts from the end of the one before; its fifth value has a
    weight, `reads[layer]` if there is one.
    """
    entries = [Entry("start", ("x",), ("x",))]
    last = "x"
    for layer in range(layers):
        for number, form in enumerate(FORMS):
            name = f"{form}{layer}"
            weight = (reads.get(layer, f"w{layer}"),) if number == 5 else ()
            entries.append(Entry(form, (last, *weight, name), (name,)))
            last = name
    entries.append(Entry("end", (last, "y"), ("y",)))
    return entries


def test_equal_layers_are_found_with_corresponding_names() -> None:
    found = find_repetition(make_entries(9, reads={}), {}, 6)
    assert found is not None
    assert (found.length, found.copies) == (10, 9)
    assert found.last - found.first >= 6
    assert found.shift("c3", 2) == "c5"
    assert found.shift("w3", 2) == "w5"
    assert found.shift("x", 2) == "x"
    assert found.shift("c8", 1) is None


def test_layer_that_shares_a_weight_ends_the_row() -> None:
    found = find_repetition(make_entries(12, reads={3: "w2"}), {}, 6)
    assert found is not None
    assert (found.first, found.last) == (4, 11)


def test_layers_that_take_turns_are_found_together() -> None:
    turns = {layer: ("all", "nearby", "nearby")[layer % 3] for layer in range(19)}
    found = find_repetition(make_entries(19, reads=turns), {}, 4)
    assert found is not None
    assert (found.length, found.copies) == (30, 6)
    assert found.shift("c3", 1) == "c6"


def test_windows_that_a_layer_has_twice_do_not_hide_it() -> None:
    entries = [
        Entry(form, (f"w{layer}", f"{part}{form}{layer}"), (f"{part}{form}{layer}",))
        for layer in range(7)
        for part in ("p", "q", "r")
        for form in (*FORMS, "end" if part == "r" else "next")
    ]
    found = find_repetition(entries, {}, 5)
    assert found is not None
    assert (found.length, found.last - found.first) == (33, 7)


def test_facts_about_a_name_tell_layers_apart() -> None:
    entries = make_entries(9, reads={})
    assert find_repetition(entries, {f"w{layer}": layer for layer in range(9)}, 6) is None
    assert find_repetition(entries, {"f4": "result"}, 6) is None


def test_node_behind_belongs_to_the_layer_that_it_reads() -> None:
    entries = make_entries(9, reads={})
    entries += [Entry("view", (f"d{layer}", f"v{layer}"), (f"v{layer}",)) for layer in reversed(range(9))]
    found = find_repetition(entries, {}, 6)
    assert found is not None
    assert found.shift("v3", 2) == "v5"
    entries = [entry for entry in entries if entry.names[0] != "d4"]
    assert find_repetition([*entries], {}, 6) is None


def test_form_is_the_node_without_names() -> None:
    shape = (as_expr(8),)
    i0 = symbol("i0", extent=shape[0])
    out = Buffer(name="out", dtype=DType.F32, shape=shape, strides=(as_expr(1),))
    body = op("add", load("a", [i0], DType.F32), op("mul", load("b", [i0], DType.F32), const(2.0, DType.F32)))
    node = Pointwise(output=out, ranges=(i0,), body=body, into="c")
    names = {"out": "out2", "a": "a2", "b": "b2", "c": "c2"}
    renamed = rename_node(node, names)
    form, other = describe_node(node), describe_node(renamed)
    assert form is not None
    assert other is not None
    assert form.key == other.key
    assert other.names == tuple(names[name] for name in form.names)
    assert rename_node(renamed, {new: old for old, new in names.items()}) == node
    same = describe_node(rename_node(node, {"b": "a"}))
    assert same is not None
    assert same.key != form.key


def test_form_of_a_call_tells_numbers_of_other_types_apart() -> None:
    out = Buffer(name="out", dtype=DType.F32, shape=(), strides=())
    call = Extern(target="aten.add.Scalar", args=(Ref("a"), 1), outputs=(out,))
    forms = {describe_node(replace(call, args=(Ref("a"), number))) for number in (1, True, 1.0, 0.0, -0.0)}
    assert len({form.key for form in forms if form is not None}) == 5
    assert describe_node(replace(call, effect=True)) is None


def test_of_corresponding_weights_all_are_read_or_none_is() -> None:
    found = find_repetition(make_entries(9, reads={}), {}, 6)
    assert found is not None
    weights = {f"w{layer}" for layer in range(9)}
    assert found.are_alike(weights, weights) and found.are_alike(set(), weights)
    assert not found.are_alike(weights - {"w4"}, weights)
    # values that nodes define may be inside of others
    assert found.are_alike(weights | {"c3"}, weights)
