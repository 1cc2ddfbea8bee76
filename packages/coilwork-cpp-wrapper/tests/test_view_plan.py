"""Which names have a tensor, and when tensors are released."""

from __future__ import annotations

from hand_programs import program_of

from coilwork_cpp_wrapper.view_plan import ViewPlan, plan_views
from coilwork_ir.index import as_expr


def plan(body: str, inputs: str = "input %x: f32[8]") -> ViewPlan:
    return plan_views(program_of(f"program @p {{\n{inputs}\nRELU_ADD\n{body}\n}}"))


def test_a_chain_of_reuses_is_one_tensor_that_moves_to_the_result() -> None:
    found = plan(
        """alloc %a: f32[8]
        reuse %b: f32[8] of %a
        launch @relu_add (%x, %x, %b) sizes [8]
        reuse %c: f32[8] of %b
        return (%c)"""
    )
    assert found.bare == {"b"} and found.places["b"].root == "a"
    assert list(found.moved.values()) == ["a"] and not any(found.released.values())


def test_a_tensor_does_not_move_away_from_views_that_are_read_later() -> None:
    found = plan(
        """alloc %a: f32[8]
        view %v: f32[4] of %a offset `4`
        reuse %b: f32[8] of %a
        launch @relu_add (%v, %x, %b) sizes [4]
        free (%v)
        return (%b)"""
    )
    assert not found.moved and found.bare == {"v"}
    assert [names for names in found.released.values() if names] == [("a",)]


def test_bits_of_an_input_are_seen_by_torch_and_those_of_own_memory_are_not() -> None:
    found = plan(
        """view %bits: i32[8] of %x offset `0`
        launch @relu_add (%bits, %bits, %bits) sizes [8]
        alloc %a: f32[8]
        view %own: i32[4] of %a offset `4`
        launch @relu_add (%own, %own, %own) sizes [4]
        return ()"""
    )
    assert found.bare == {"own"}
    assert found.places["own"].offset_bytes == as_expr(16)


def test_a_tensor_of_a_part_of_a_pool_needs_no_tensor_between() -> None:
    found = plan(
        """pool %memory `256` "cpu"
        carve %a: f32[32] of %memory at `128`
        view %b: f32[4] of %a offset `3`
        launch @relu_add (%a, %a, %a) sizes [32]
        extern "aten.sum.default" (%b) defines (%sum: f32[])
        free (%a, %memory, %b)
        return (%sum)"""
    )
    assert found.bare == {"a"}
    assert found.seen["b"].root == "memory" and found.seen["b"].offset_bytes == as_expr(140)


def test_bits_of_what_a_tensor_lies_in_take_a_tensor_each() -> None:
    """A view of other elements, of a view of memory that somebody else allocated."""
    found = plan(
        """extern "aten.relu.default" (%x) defines (%y: f32[8])
        view %a: f32[4] of %y offset `1`
        view %bits: i32[4] of %a offset `0`
        extern "aten.sum.default" (%bits) defines (%sum: i64[])
        return (%sum)"""
    )
    assert not found.bare and not found.seen
