"""Every use of torch API that is not public, so that versions differ in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    elementwise_dtypes,
    suggest_memory_format,
)
from torch.fx.proxy import GraphAppendingTracer as GraphAppendingTracer
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

Overload: TypeAlias = torch._ops.OpOverload
HigherOrder: TypeAlias = torch._ops.HigherOrderOperator

PROMOTION = ELEMENTWISE_TYPE_PROMOTION_KIND


def promoted(
    kind: ELEMENTWISE_TYPE_PROMOTION_KIND, operands: Sequence[Any]
) -> tuple[torch.dtype, torch.dtype]:
    """(type to compute in, type of the result) for fake tensors and numbers under torch's promotion rules."""
    compute, result = elementwise_dtypes(*operands, type_promotion_kind=kind)
    return compute, result


def composite_operators() -> tuple[str, ...]:
    """The names of all operators that are made of others: libraries that a program loads add to them."""
    found: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return tuple(found)


def base_decompositions() -> dict[Any, Callable[..., Any]]:
    """A fresh copy of torch's core ATen decompositions. Making it walks all operators: a tenth of a second."""
    # loaded on use: the tables take longer to build than this package takes to import
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def more_decompositions(packets: Sequence[Any]) -> dict[Any, Callable[..., Any]]:
    """Decompositions registered for `packets`."""
    from torch._decomp import get_decompositions

    return dict(get_decompositions(packets))


def qualified_name(target: Overload) -> str:
    """`"aten.add.Tensor"` for an overload."""
    return f"{target.namespace}.{target._schema.name.split('::')[-1]}.{target._overloadname}"


def overload_called(name: str) -> Overload:
    """The overload of a qualified name, `"aten.add.Tensor"`.

    Raises:
        KeyError: there is none.
    """
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Overload):
        raise KeyError(name)
    return found


def schema_of(target: Overload) -> torch.FunctionSchema:
    """The schema of an overload."""
    return target._schema


def has_kernel(target: Overload, device_type: str) -> bool:
    """Whether a kernel is registered for `target` on the backend of `device_type` itself."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device_type, "CPU")
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), key))


def sympy_of(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Basic:
    """The sympy expression of a symbolic number."""
    return value.node.expr


def shape_env_of(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> ShapeEnv:
    """The shape environment that `value` belongs to."""
    env: ShapeEnv = value.node.shape_env
    return env


def environment_of(gm: torch.fx.GraphModule) -> ShapeEnv | None:
    """The shape environment of the sizes in `gm`; None if all of them are known."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return shape_env_of(size)
    return None


def environment_among(values: Iterable[object]) -> ShapeEnv | None:
    """The shape environment of the sizes of tensors, and of sizes, among `values` and lists of them; None if all are known."""
    for value in values:
        if isinstance(value, list | tuple):
            found = environment_among(value)
            if found is not None:
                return found
            continue
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return shape_env_of(size)
    return None


def current_stack_trace() -> object:
    """The user's traceback of the call that is being traced from a captured graph; None if there is none."""
    return torch.fx.traceback.get_current_meta().get("stack_trace")


def guard_count(env: ShapeEnv) -> int:
    """How many guards there are on sizes."""
    return len(env.guards)


def guard_texts(env: ShapeEnv, first: int) -> list[tuple[str, str]]:
    """The guards from number `first` on: conditions, and the lines of code that asked for them."""
    return [(str(guard.expr), str(guard.sloc)) for guard in env.guards[first:]]


def hint_of(value: int | torch.SymInt) -> int | None:
    """The number that a size was traced with; None if it depends on data. Adds no guard."""
    if isinstance(value, int):
        return int(value)
    hint: int | None = value.node.hint
    return hint


def fake_mode_of(gm: torch.fx.GraphModule) -> AbstractContextManager[object] | None:
    """The fake tensor mode, to be entered, that the tensors in the graph's metadata belong to."""
    from torch._guards import detect_fake_mode

    values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    found: AbstractContextManager[object] | None = detect_fake_mode(
        [v for v in values if isinstance(v, torch.Tensor)]
    )
    return found


def mode_among(values: Iterable[object]) -> AbstractContextManager[object] | None:
    """The fake tensor mode, to be entered, that the first fake tensor of `values` was made in.

    A captured graph's tensors are of Dynamo's mode, while `fake_mode_of` finds the one that AOTAutograd will trace with.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    found = (value.fake_mode for value in values if isinstance(value, FakeTensor))
    mode: AbstractContextManager[object] | None = next(found, None)
    return mode


def guards_suppressed(fake_mode: object) -> AbstractContextManager[object]:
    """While it is entered, questions about the open sizes of `fake_mode` are answered for those at hand, without a guard."""
    env: ShapeEnv | None = getattr(fake_mode, "shape_env", None)
    return nullcontext() if env is None else env.suppress_guards()


def nothing_remembered(fake_mode: object) -> AbstractContextManager[object]:
    """While it is entered, operators on fake tensors of `fake_mode` are not looked up among earlier calls, nor kept.

    Torch describes both by memory formats, and what it asks of open sizes for that becomes guards.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode, disable_fake_tensor_cache

    if not isinstance(fake_mode, FakeTensorMode):
        return nullcontext()
    made: AbstractContextManager[object] = disable_fake_tensor_cache(fake_mode)
    return made


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether `tensor` has no contents."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def number_in(tensor: torch.Tensor) -> int | float | bool:
    """The value of a real tensor of one element, also where operators are being traced on fake ones."""
    with on_real_tensors():
        found: int | float | bool = tensor.item()
    return found


def on_real_tensors() -> AbstractContextManager[object]:
    """Within it operators compute, also where they are being traced on fake tensors."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    found: AbstractContextManager[object] = unset_fake_temporarily()
    return found


def copied_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A copy of `graph`, node for node, with metadata of its own; it calls and returns as `graph` does.

    `copy.deepcopy` does the same, but warns about how torch copies tree specifications.
    """
    made = torch.fx.Graph(tracer_cls=graph._tracer_cls)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    made.graph_copy(graph, copies)
    old = graph.output_node()
    made.output(torch.fx.map_arg(old.args[0], copies.__getitem__), old.type).meta.update(old.meta)
    made.set_codegen(graph._codegen)
    return made


def functionalized_calls(copied: Callable[[torch.Tensor], torch.Tensor]) -> dict[Any, Callable[..., Any]]:
    """The wrappers of operators that write into their arguments, and functions that say what each does.

    They copy by `copied` what is written into; torch's own would keep its place in the storage, by way of flat views of it.
    """
    from torch._higher_order_ops.auto_functionalize import (
        auto_functionalized,
        auto_functionalized_dense,
        auto_functionalized_v2,
        auto_functionalized_v2_dense,
    )

    def by_argument(operator: Overload, **given: Any) -> Any:
        for formal in schema_of(operator).arguments:
            if (
                formal.alias_info is not None
                and formal.alias_info.is_write
                and given.get(formal.name) is not None
            ):
                given[formal.name] = tree_map_only(torch.Tensor, copied, given[formal.name])
        return auto_functionalized_dense(operator, (), **given)

    def by_base(operator: Overload, **given: Any) -> Any:
        bases = [copied(base) for base in given.pop("_all_bases", ())]
        return auto_functionalized_v2_dense(operator, (), _all_bases=bases, **given)

    return {auto_functionalized: by_argument, auto_functionalized_v2: by_base}


def copy_of_storage(value: torch.Tensor) -> torch.Tensor:
    """A copy of `value`, as far from the beginning of its storage as `value` is."""
    from torch._prims_common import clone_preserve_strides

    copy: torch.Tensor = clone_preserve_strides(value)
    return copy


def dense_meanings() -> dict[Any, Callable[..., Any]]:
    """Higher-order operators that stand for calls of others, and the functions that make these calls."""
    from torch._higher_order_ops.flex_attention import (
        flex_attention,
        flex_attention_backward,
        sdpa_dense,
        sdpa_dense_backward,
    )

    return {flex_attention: sdpa_dense, flex_attention_backward: sdpa_dense_backward}


def out_dtype_meaning() -> dict[Any, Callable[..., Any]]:
    """The higher-order operator that computes an operator in a wider type, and the function that calls what it stands for."""
    from torch._higher_order_ops.out_dtype import out_dtype, out_dtype_dense

    return {out_dtype: out_dtype_dense}


def traced_call(
    function: Callable[..., Any], values: Sequence[Any], mode: AbstractContextManager[object] | None
) -> torch.fx.Graph:
    """The ATen graph of one call with fake tensors and numbers of `mode`, a placeholder for each of `values`."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with nullcontext() if mode is None else mode:
        return make_fx(function)(*values).graph


def integer_bounds(env: ShapeEnv, symbol: sympy.Symbol) -> tuple[int | None, int | None]:
    """Inclusive bounds of `symbol`; None where it is unbounded. Adds no guard."""
    found = env.var_to_range.get(symbol)
    if found is None:
        return (None, None)
    return (_finite(found.lower), _finite(found.upper))


def known_multiples(env: ShapeEnv) -> list[tuple[sympy.Basic, sympy.Basic]]:
    """Expressions that guards or assertions hold to be multiples, and of what. Adds no guard."""
    return sorted(((one.args[0], one.args[1]) for one in env.divisible), key=str)


def expression_bounds(env: ShapeEnv, expression: sympy.Basic) -> tuple[int | None, int | None]:
    """Inclusive bounds of an integer expression; None where it is unbounded. Adds no guard."""
    found = env.bound_sympy(expression)
    return (_finite(found.lower), _finite(found.upper))


def require(condition: Any, message: Callable[[], str]) -> None:
    """Raise `message()` at run time where `condition`, a boolean or a symbolic one, does not hold, while a graph is traced."""
    torch._check(condition, message)


def surely(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds whatever they are. Adds no guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return condition if isinstance(condition, bool) else statically_known_true(condition)


def is_unequal(condition: object, size: torch.SymInt, number: int) -> bool:
    """Whether `condition` is written as `size != number`. Adds no guard."""
    import sympy

    return isinstance(condition, torch.SymBool) and sympy_of(condition) == sympy.Ne(sympy_of(size), number)


def is_from_data(size: int | torch.SymInt) -> bool:
    """Whether a size depends on values that only run time knows."""
    # loaded on use: it brings sympy, and graphs of known sizes need neither
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))


def plain_integer(name: str) -> sympy.Symbol:
    """A new integer symbol."""
    # sympy takes longer to load than this package; whoever has symbolic sizes has loaded it
    import sympy

    return sympy.Symbol(name, integer=True)


def plain_symbol(value: torch.SymInt) -> sympy.Symbol | None:
    """torch's symbol if `value` is one and nothing more."""
    import sympy

    expression = sympy_of(value)
    return expression if isinstance(expression, sympy.Symbol) else None


def makes_sizes(number: torch.SymFloat, gm: torch.fx.GraphModule) -> bool:
    """Whether `number` is part of an integer in `gm` or of the size of a tensor."""
    own = sympy_of(number).free_symbols
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and own & sympy_of(size).free_symbols:
                return True
    return False


def call_by_one_name(size: torch.SymInt, known: torch.SymInt) -> None:
    """Torch's symbol for `size`, if it is one that data decides and has no other name yet, is from now on that of `known`."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    old, new = plain_symbol(size), plain_symbol(known)
    if old is not None and new is not None and old != new:
        if free_unbacked_symbols(old) and free_unbacked_symbols(new):
            shape_env_of(size)._rename_unbacked_to(old, new)


def _finite(bound: sympy.Basic | int) -> int | None:
    # sympy takes longer to load than this package; whoever has symbolic sizes has loaded it
    import sympy

    if isinstance(bound, sympy.Integer | int):
        value = int(bound)
        # torch writes "no bound" as infinities or as the largest machine integer
        return value if abs(value) < 2**62 else None
    return None


def min_cut(
    joint_gm: torch.fx.GraphModule, joint_inputs: Sequence[Any], **kw: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """torch's min-cut partitioner without its own subexpression pass, which imports TorchInductor."""
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with config.patch(cse=False):
        forward, backward = min_cut_rematerialization_partition(joint_gm, joint_inputs, **kw)
    return forward, backward


def tangents_of(joint_gm: torch.fx.GraphModule) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
    """Each gradient that comes into a joint graph as the caller hands it over, and the result that it belongs to.

    From torch 2.12 on there is none: AOTAutograd gives them the shapes that it has traced.
    """
    if not torch.__version__.startswith("2.11."):
        return []
    last = joint_gm.graph.output_node()
    results: dict[object, Any] = dict(zip(last.meta.get("desc", ()), tree_leaves(last.args), strict=False))
    pairs = [
        (node, results.get(getattr(node.meta.get("desc"), "output", None)))
        for node in joint_gm.graph.nodes
        if node.op == "placeholder"
    ]
    return [(tangent, result) for tangent, result in pairs if isinstance(result, torch.fx.Node)]


def operator_behind(node: torch.fx.Node) -> str | None:
    """Name, without overload, of the operator that was decomposed into `node` and others, or is it; `None` if it is not known."""
    original = node.meta.get("original_aten")
    return str(original.overloadpacket) if isinstance(original, Overload) else None


def suggested_format(value: torch.Tensor) -> torch.memory_format:
    """Channels-last if that is how `value` lies, else contiguous: the format of what eager's kernels make of it."""
    return suggest_memory_format(value)


_COUNTED: Final = frozenset(
    {"aten::unique_dim", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim_consecutive"}
)


def kernel_dtype(target: Any, number: int) -> torch.dtype | None:
    """The element type that kernels give result `number`, where torch 2.11's meta functions name another: positions and counts
    of distinct values are `int64`, not of the values' type. None elsewhere.
    """
    counted = isinstance(target, Overload) and schema_of(target).name in _COUNTED
    return torch.int64 if counted and number else None


_PACKINGS: Final = frozenset({"mkldnn::_reorder_linear_weight", "mkldnn::_reorder_convolution_weight"})


def is_packing(target: Any) -> bool:
    """Whether calls of `target` lay a weight out as oneDNN wants it."""
    return isinstance(target, Overload) and schema_of(target).name in _PACKINGS


def packed_types() -> tuple[torch.dtype, ...]:
    """The types of weights that oneDNN packs on this machine; none where torch was built without it, or it is switched off."""
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return ()
    if not all(torch._C._jit_get_schemas_for_operator(name) for name in _PACKINGS):
        return ()
    supported = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return (torch.float32, torch.bfloat16) if supported else (torch.float32,)
