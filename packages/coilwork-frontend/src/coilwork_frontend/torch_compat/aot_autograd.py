"""Run AOTAutograd with our compilers, and read what it knows of the graph that is being compiled.

Facts about torch 2.11 to 2.13: `aot_module_simplified` takes different keywords, so only those common to all
are passed; DDP's optimizer decides whether to run a bucket on fake tensors by a counter that a back end must
bump; before 2.13 nothing says that checks of linear algebra have effects.

In the first call of a graph, torch 2.13 enters a dispatch mode to look at what custom operators return. The
keys of lazy conjugation and negation are off in such a mode, so `torch.linalg.pinv` of a complex matrix is
wrong then, under `aot_eager` too. `FirstCall` turns the keys on again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch._dynamo.decorators import skip
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta, ViewAndMutationMeta
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext, tracing
from torch._higher_order_ops import effects
from torch._higher_order_ops.effects import _EffectType, _get_effect, _register_effectful_op
from torch._higher_order_ops.schema import HopSchema
from torch._higher_order_ops.torchbind import call_torchbind
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
    is_traceable_wrapper_subclass,
)

# ---- The first call of a graph ----


# None in versions that look at no operator.
_CHECK: Final[type[TorchDispatchMode] | None] = getattr(
    runtime_wrappers, "_AnalyzeCustomOpInputOutputMode", None
)
_LAZY: Final = (
    torch._C.DispatchKey.Conjugate,
    torch._C.DispatchKey.Negative,
    torch._C.DispatchKey.ZeroTensor,
)
_BUILT_IN: Final = ("aten", "prim", "prims")


class FirstCall:
    """A compiled graph whose first call conjugates lazily, too; custom operators are still checked."""

    _boxed_call = True

    def __init__(self, call: Callable[[list[Any]], Any]) -> None:
        self._call = call
        self._is_first = True

    def __call__(self, args: list[Any]) -> Any:
        if not self._is_first:
            return self._call(args)
        self._is_first = False
        with ExitStack() as stack:
            mode = _get_current_dispatch_mode()
            if _CHECK is not None and isinstance(mode, _CHECK):
                stack.enter_context(_pop_mode_temporarily())
                stack.enter_context(_LazyBuiltIns(mode))
            return self._call(args)


class _LazyBuiltIns(TorchDispatchMode):
    """Calls torch's own operators with lazy conjugation, and leaves others to the mode `check`."""

    def __init__(self, check: TorchDispatchMode) -> None:
        initialize: Callable[[], None] = super().__init__  # the base class is not typed
        initialize()
        self.supports_higher_order_operators = True
        self._check = check

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "namespace", None) not in _BUILT_IN:
            return self._check.__torch_dispatch__(func, types, args, kwargs)
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for key in _LAZY:
            excluded = excluded.remove(key)
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
            return func(*args, **(kwargs or {}))

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def has_conjugates(gm: torch.fx.GraphModule) -> bool:
    """Tell if a value of `gm` is complex; other graphs have no lazy conjugation."""
    values = (node.meta.get("val") for node in gm.graph.nodes)
    return any(
        isinstance(leaf, torch.Tensor) and leaf.dtype.is_complex
        for value in values
        for leaf in torch.utils._pytree.tree_leaves(value)
    )


# ---- AOTAutograd ----


BoxedCallable = Callable[[list[Any]], Any]
NO_ALIAS: Final = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)

_OF_RESULT: Final = OutputType.alias_of_intermediate_base_is_user_output


def return_own_objects(joint: torch.fx.GraphModule, count: int) -> None:
    """Let objects among the first `count` results of `joint`, those of the forward graph, be its own inputs.

    Torch finds the input that a returned object was by equality. Of equal device meshes it may find the one
    that comes with the tangents, which the forward graph does not have.
    """
    inputs = joint.graph.find_nodes(op="placeholder")
    own = [node for node in inputs if "tangents" not in str(node.target) and _object_in(node) is not None]
    (results,) = joint.graph.output_node().args
    assert isinstance(results, list | tuple)
    replaced = list(results)
    for position, node in enumerate(replaced[:count]):
        if isinstance(node, torch.fx.Node) and node in inputs and node not in own:
            found = _object_in(node)
            replaced[position] = next((one for one in own if found and _object_in(one) == found), node)
    if replaced != list(results):
        joint.graph.output_node().args = (type(results)(replaced),)


def _object_in(node: torch.fx.Node) -> object:
    """Return the object that is the value of `node`; None for tensors and numbers."""
    value = node.meta.get("val")
    return getattr(value, "real_obj", None) if type(value).__name__ == "FakeScriptObject" else None


def forget_tracing() -> AbstractContextManager[object]:
    """Return a context without torch's tracing context, in which a part of a graph is compiled by itself."""
    context: AbstractContextManager[object] = tracing(None)
    return context


class GraphCompiler(Protocol):
    """A compiler that AOTAutograd calls with each graph that it makes."""

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable: ...


@runtime_checkable
class HasDirect(Protocol):
    """A compiled graph that may also be called with inputs one by one, in any grad mode (`direct`)."""

    @property
    def direct(self) -> Callable[..., Sequence[Any]] | None: ...


class TraceObserver(Protocol):
    """Hears what AOTAutograd makes of one of Dynamo's graphs."""

    def note_halves(self, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> None:
        """Hear of the halves of a joint graph, before they are compiled."""

    def note_graph(self, role: str, compiled: object) -> None:
        """Hear of a compiled graph, in the context in which it was compiled."""

    def note_return(self, *, is_direct: bool) -> None:
        """Hear that tracing is done; with `is_direct`, the graph is called without AOTAutograd's wrapper."""


class UntracedCall:
    """A compiled backward graph that Dynamo does not trace.

    Autograd's engine calls it between frames of the user's that Dynamo traces. Traced, the code that launches
    kernels would be compiled again, or fail.
    """

    _boxed_call = True

    def __init__(self, call: BoxedCallable) -> None:
        self._call: BoxedCallable = torch._dynamo.disable(call)

    @skip
    def __call__(self, args: list[Any]) -> Any:
        return self._call(args)


def compile_with_aot_autograd(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
    decompositions: dict[Any, Callable[..., Any]],
    partition: Callable[..., Any],
    observer: TraceObserver | None = None,
) -> Callable[..., Any]:
    """Run AOTAutograd over a Dynamo graph with our compilers, and tell `observer`.

    Returns the compiled graph itself where AOTAutograd's wrapper would only pass inputs and results through.
    """
    direct: list[Callable[..., Any] | None] = []

    count = len(example_inputs)
    # autocast must be off in calls, as it is while a graph is compiled
    autocast = torch._C._is_any_autocast_enabled()
    subclasses = _sees_subclasses(gm, example_inputs)

    def compile_lazily(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        forget_repeated_views(gm)
        call = forward(gm, example_inputs)
        if observer is not None:
            observer.note_graph("forward", call)
        return FirstCall(call) if has_conjugates(gm) else call

    def compile_inference(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        call = inference(gm, example_inputs)
        compiled: object = call
        if observer is not None:
            observer.note_graph("inference", call)
        plain = not (autocast or subclasses) and len(example_inputs) == count and has_pass_through_wrapper()
        direct.append(compiled.direct if plain and isinstance(compiled, HasDirect) else None)
        return FirstCall(call) if has_conjugates(gm) else call

    def compile_untraced(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        call = backward(gm, example_inputs)
        allow_kept_graphs()
        if observer is not None:
            observer.note_graph("backward", call)
        return UntracedCall(call)

    def split(joint: torch.fx.GraphModule, *inputs: Any, **facts: Any) -> Any:
        halves = partition(joint, *inputs, **facts)
        if observer is not None:
            observer.note_halves(*halves)
        return halves

    count_compilation()
    # Otherwise the tokens that order calls with effects are inputs and outputs of the graph, and None at run
    # time.
    with (
        functorch_config.patch(unlift_effect_tokens=True),
        keep_checks(),
        allow_tuples_of_methods(),
        view_shared_storages(),
    ):
        compiled = aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=compile_lazily,
            bw_compiler=torch._dynamo.disable(compile_untraced),
            inference_compiler=compile_inference,
            decompositions=decompositions,
            partition_fn=split,
            keep_inference_input_mutations=True,
        )
    call = direct[0] if len(direct) == 1 else None
    if observer is not None:
        observer.note_return(is_direct=call is not None)
    return keep_untraced(compiled) if call is None else call


def count_compilation() -> None:
    """Count a graph for DDP's optimizer, which asks whether a back end uses AOTAutograd."""
    counters["aot_autograd"]["total"] += 1


def keep_untraced(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return `compiled` as a function that Dynamo does not trace."""
    wrapped: Callable[..., Any] = torch._dynamo.disable(compiled)
    return wrapped


def _sees_subclasses(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Tell if an input or a result of a captured graph is, or may be, a wrapper subclass."""
    results = torch.fx.node.map_arg(
        gm.graph.output_node().args, lambda node: node.meta.get("example_value", node)
    )
    return any(
        isinstance(value, torch.fx.Node) or is_traceable_wrapper_subclass(value)
        for value in (*example_inputs, *pytree.tree_leaves(results))
    )


def has_pass_through_wrapper() -> bool:
    """Tell if AOTAutograd's wrapper around the inference graph being compiled passes values through.

    It does not if inputs are overwritten, results are views or have dynamic dimensions, random state is an
    input, effects are ordered by tokens, autocast is on, or the first call runs on fakes. Wrapper subclasses
    are not seen here: the metadata describes their parts.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if (
        context is None
        or metadata is None
        or context.fakify_first_call
        or torch._C._is_any_autocast_enabled()
    ):
        return False
    return (
        not any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
        and all(info.output_type in NO_ALIAS and not info.dynamic_dims for info in metadata.output_info)
        and metadata.num_intermediate_bases == 0
        and metadata.grad_enabled_mutation is None
        and not metadata.tokens
        and not metadata.is_rng_op_functionalized
        and not functorch_config.debug_assert
    )


@contextmanager
def leave_transforms() -> Iterator[None]:
    """Leave the transforms of `torch.func` that a graph has entered when running or tracing it raises.

    The calls that would leave them are behind the one that raised, and Dynamo's guards ask which are on.
    """
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    except BaseException:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        raise


@contextmanager
def keep_checks() -> Iterator[None]:
    """Make AOTAutograd keep the checks of linear algebra, whose results nobody uses, while it is entered.

    torch 2.13 registers their effect itself. Before, they are dropped as dead code, and a singular matrix
    goes unnoticed. The registration is undone, because other back ends of those versions do not expect it.
    """
    check = torch.ops.aten._linalg_check_errors.default
    if _get_effect(check) is not None:
        yield
        return
    registration = _register_effectful_op(check, _EffectType.ORDERED)
    try:
        yield
    finally:
        registration.destroy()


@contextmanager
def allow_tuples_of_methods() -> Iterator[None]:
    """Let methods of script objects return tuples in traced graphs, while it is entered.

    The call hands out the elements of a tuple one by one, and torch expects as many as the schema of the
    method has results, which is one.
    """
    find: Callable[..., Any] = effects._get_schema

    def find_by_element(op: Any, args: Any, kwargs: dict[Any, Any] | None = None) -> torch.FunctionSchema:
        schema: torch.FunctionSchema = find(op, args, kwargs)
        if op is not call_torchbind or len(schema.returns) != 1:
            return schema
        result: Any = schema.returns[0].type
        if result.kind() != "TupleType":
            return schema
        elements = [
            torch._C.Argument(f"element_{k}", one, None, None, False, None)
            for k, one in enumerate(result.elements())
        ]
        # of such a schema torch gives the results as a tuple, also a single one
        return HopSchema(schema.name, "", list(schema.arguments), elements, False, False, None)

    effects._get_schema = find_by_element
    try:
        yield
    finally:
        effects._get_schema = find


@contextmanager
def view_shared_storages() -> Iterator[None]:
    """Let results that are views of inputs in a shared storage lie where eager's do, while it is entered.

    If an input is overwritten that overlaps another one, torch compiles for the tensor of which both are
    views. It then repeats on that tensor the steps by which a result was made of the input, and finds other
    elements, or none of the result's shape. Without steps it takes size, strides and offset. Before 2.13 a
    returned input became that tensor, too.
    """
    names, name = vars(runtime_wrappers), "create_synthetic_base_metadata"
    describe: Callable[..., Any] = names[name]

    def describe_by_place(
        outer: ViewAndMutationMeta,
        bases: Sequence[Any],
        inputs: Sequence[Any],
        inner: Sequence[Any],
        *rest: Any,
    ) -> tuple[ViewAndMutationMeta, list[int]]:
        found: tuple[ViewAndMutationMeta, list[int]] = describe(outer, bases, inputs, inner, *rest)
        results = found[0].output_info
        for position, before in enumerate(outer.output_info):
            if before.base_idx is None or not isinstance(bases[before.base_idx], tuple):
                continue
            base, _ = bases[before.base_idx]
            result = replace(results[position], view_meta_sequence=None)
            if result.output_type == OutputType.is_input and not _lie_alike(
                inputs[before.base_idx], inner[base]
            ):
                result = replace(result, output_type=OutputType.alias_of_input)
            results[position] = result
        return found

    names[name] = describe_by_place
    try:
        yield
    finally:
        names[name] = describe


def _lie_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.size() == other.size()
        and one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
    )


def list_static_positions() -> tuple[int, ...]:
    """Return the positions of parameters and buffers among the inputs of the forward graph being compiled."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return ()
    return tuple(metadata.static_input_indices)


def count_returned_outputs() -> int | None:
    """Return how many of the first outputs of the forward graph being compiled go to its caller.

    The others are saved for the backward graph. `None` if that is not known.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return None if metadata is None else int(metadata.num_forward)


def can_report_strides() -> bool:
    """Tell if AOTAutograd asks for the strides of the results of the graph being compiled."""
    context = TracingContext.try_get()
    return context is not None and context.output_strides is not None


def report_output_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd the strides of the results of the graph being compiled; `None`: as captured."""
    context = TracingContext.try_get()
    assert context is not None and context.output_strides is not None
    context.output_strides[:] = strides


def take_view_results() -> tuple[int, ...]:
    """Return the positions of the forward graph's outputs that are views of its intermediates, and take them
    over.

    A custom function must not return views, so AOTAutograd would make tensors of them with version counters
    of their own. From now on it returns them as they come, and the caller of this function makes the tensors.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return ()
    first = int(metadata.num_mutated_inp_runtime_indices)
    taken = tuple(first + int(k) for k in metadata.unsafe_view_out_indices)
    metadata.unsafe_view_out_indices = []
    metadata.num_unsafe_view_outputs = 0
    return taken


def forget_repeated_views(gm: torch.fx.GraphModule) -> None:
    """Keep AOTAutograd from repeating views on results of its forward graph `gm` that are such views already.

    It notes the views by which a result was made of its base, and repeats them on the base. If `y.detach()`
    is returned beside a view `y`, the base is `y` itself: `x.t().detach()` was transposed back, and a
    detached part was read beyond the memory.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return
    (results,) = gm.graph.output_node().args
    assert isinstance(results, list | tuple)
    start = len(metadata.mutated_inp_runtime_indices)
    for position, info in enumerate(metadata.output_info):
        if info.output_type is not _OF_RESULT or getattr(info, "view_meta_sequence", None) is None:
            continue
        if _have_one_layout(results[start + position], results[start + int(info.base_idx or 0)]):
            metadata.output_info[position] = replace(info, view_meta_sequence=None)


def _have_one_layout(one: object, other: object) -> bool:
    """Tell if two nodes are tensors with the same shape, strides, offset and marks."""
    values = [node.meta.get("val") if isinstance(node, torch.fx.Node) else None for node in (one, other)]
    first, second = (
        (
            value.is_complex(),
            value.is_conj(),
            value.is_neg(),
            value.shape,
            value.stride(),
            value.storage_offset(),
        )
        if isinstance(value, torch.Tensor) and value.layout == torch.strided
        else None
        for value in values
    )
    return first is not None and first == second


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFacts:
    """AOTAutograd's facts about the user's results in the forward or inference graph being compiled.

    Attributes:
        start: position of the first result among the outputs.
        count: number of results; 0 with wrapper subclasses, which have several outputs each.
        remade: positions of results that AOTAutograd makes anew as views, and that are no base of others.
        constant: positions of results that require no gradient.
    """

    start: int
    count: int
    remade: frozenset[int]
    constant: frozenset[int]


def get_result_facts() -> ResultFacts:
    """Return AOTAutograd's facts about the results of the graph being compiled."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    infos = () if metadata is None else metadata.output_info
    start = 0 if metadata is None else len(metadata.mutated_inp_runtime_indices)
    parts = () if metadata is None else metadata.subclass_fw_graph_out_meta
    if not all(isinstance(part, PlainTensorMeta) for part in parts):
        infos = ()
    results = tuple(enumerate(infos, start=start))
    bases = {start + (info.base_idx or 0) for info in infos if info.output_type is _OF_RESULT}
    return ResultFacts(
        start=start,
        count=len(results),
        remade=frozenset(position for position, info in results if info.output_type not in NO_ALIAS) - bases,
        constant=frozenset(position for position, info in results if not info.requires_grad),
    )


def list_aliased_inputs() -> tuple[tuple[int, int], ...]:
    """Return pairs (output, input) of the graph being compiled: results that are views of inputs."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return ()
    # New contents of inputs that the graph does not overwrite itself come first.
    results = enumerate(metadata.output_info, start=len(metadata.mutated_inp_runtime_indices))
    return tuple(
        (output, int(info.base_idx))
        for output, info in results
        if info.output_type is OutputType.alias_of_input and info.base_idx is not None
    )


def list_updated_inputs() -> tuple[tuple[int, int], ...]:
    """Return pairs (output, input) of the graph being compiled: the new contents of inputs.

    AOTAutograd copies them into the inputs after the call.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return () if metadata is None else tuple(enumerate(metadata.mutated_inp_runtime_indices))


def is_tangent(node: torch.fx.Node) -> bool:
    """Tell if an input of a backward graph is a gradient of a result."""
    return "tangents" in str(node.target)


def list_donated_positions() -> tuple[int, ...]:
    """Return the positions of donated buffers: saved tensors that only this backward graph reads, once.

    AOTAutograd finds them, unless the first backward keeps its graph (`retain_graph`).
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None or not functorch_config.donated_buffer:
        return ()
    return tuple(metadata.bw_donated_idxs or ())


def allow_kept_graphs() -> None:
    """Have AOTAutograd run the backward graph that is compiled in a backward that keeps its graph, too.

    Otherwise it refuses that for the sake of donated buffers, whether or not they are overwritten. The roles
    of a compiled graph say which are, and those are copied where a graph is kept.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is not None and metadata.bw_donated_idxs:
        # the list that AOTAutograd reads at run time
        metadata.bw_donated_idxs.clear()
