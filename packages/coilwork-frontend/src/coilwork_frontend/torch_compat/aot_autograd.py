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
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext, tracing
from torch._higher_order_ops.effects import _EffectType, _get_effect, _register_effectful_op
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
    """A compiled graph that conjugates lazily in its first call, too; custom operators are still checked."""

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
    """Calls torch's own operators with lazy views, and leaves others to `check`."""

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
    """Tell if a value of `gm` is complex: no other graph has lazy views."""
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


def forget_tracing() -> AbstractContextManager[object]:
    """A context in which nothing is known of the graph that is being compiled, for a part of it."""
    context: AbstractContextManager[object] = tracing(None)
    return context


class GraphCompiler(Protocol):
    """What AOTAutograd calls with each graph that it makes."""

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable: ...


@runtime_checkable
class HasDirect(Protocol):
    """A compiled graph that may also be called with its inputs one by one, under any grad mode."""

    @property
    def direct(self) -> Callable[..., Sequence[Any]] | None: ...


class UntracedCall:
    """A compiled backward graph, called while Dynamo looks away.

    Autograd's engine calls it between frames of the user's that Dynamo traces. What launches kernels and
    computes operators there is none of the user's code: traced, it is compiled again, or fails.
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
) -> Callable[..., Any]:
    """Run AOTAutograd over a Dynamo graph with our compilers.

    Where its wrapper would hand inputs and results through as they are, what it returns is the compiled graph
    itself.
    """
    direct: list[Callable[..., Any] | None] = []

    count = len(example_inputs)
    # it has to be switched off in calls; while a graph is compiled it is off
    autocast = torch._C._is_any_autocast_enabled()
    subclasses = _sees_subclasses(gm, example_inputs)

    def compile_lazily(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        forget_repeated_views(gm)
        made = forward(gm, example_inputs)
        return FirstCall(made) if has_conjugates(gm) else made

    def compile_inference(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        made = inference(gm, example_inputs)
        compiled: object = made
        plain = not (autocast or subclasses) and len(example_inputs) == count and hands_through()
        direct.append(compiled.direct if plain and isinstance(compiled, HasDirect) else None)
        return FirstCall(made) if has_conjugates(gm) else made

    def compile_untraced(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        return UntracedCall(backward(gm, example_inputs))

    counters["aot_autograd"]["total"] += 1
    # Otherwise the tokens that order calls with effects are inputs and outputs of the graph, and None at run
    # time.
    with functorch_config.patch(unlift_effect_tokens=True), checks_have_effects():
        compiled = aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=compile_lazily,
            bw_compiler=torch._dynamo.disable(compile_untraced),
            inference_compiler=compile_inference,
            decompositions=decompositions,
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )
    if len(direct) == 1 and direct[0] is not None:
        return direct[0]
    wrapped: Callable[..., Any] = torch._dynamo.disable(compiled)
    return wrapped


def _sees_subclasses(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Tell whether an input or a result of a captured graph is, or may be, a tensor that AOTAutograd
    takes apart.
    """
    results = torch.fx.node.map_arg(
        gm.graph.output_node().args, lambda node: node.meta.get("example_value", node)
    )
    return any(
        isinstance(value, torch.fx.Node) or is_traceable_wrapper_subclass(value)
        for value in (*example_inputs, *pytree.tree_leaves(results))
    )


def hands_through() -> bool:
    """Tell whether the wrapper around the inference graph being compiled does nothing to inputs and results.

    It does if inputs are overwritten, results are views, random state is an input, sizes of results are
    remembered as changing, or the first call is a rehearsal. Of subclasses that it takes apart, the metadata
    tells the parts.
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
def checks_have_effects() -> Iterator[None]:
    """While it is entered, AOTAutograd keeps the checks of linear algebra, whose results nobody uses.

    torch 2.13 registers them for good. Before, it drops them as dead code, and a singular matrix goes
    unnoticed. The registration is undone because other back ends of those versions do not expect it.
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


def list_static_positions() -> tuple[int, ...]:
    """Positions of parameters and buffers among the inputs of the forward graph being compiled."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return ()
    return tuple(metadata.static_input_indices)


def count_returned_outputs() -> int | None:
    """How many of the first outputs of the forward graph being compiled go to its caller; `None` if that is
    not known.

    The others are saved for the backward graph.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return None if metadata is None else int(metadata.num_forward)


def can_report_strides() -> bool:
    """Tell if AOTAutograd asks how the results of the graph being compiled lie."""
    context = TracingContext.try_get()
    return context is not None and context.output_strides is not None


def report_output_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd the strides of the results of the graph being compiled; `None`: as captured."""
    context = TracingContext.try_get()
    assert context is not None and context.output_strides is not None
    context.output_strides[:] = strides


def take_view_results() -> tuple[int, ...]:
    """Return which of the forward graph's outputs go to its caller as views of what it makes.

    From now on AOTAutograd returns these as they come. It would make tensors of them whose writes are counted
    apart from those to what they show, since a custom function must not return views; what calls this does.
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
    """Make AOTAutograd take results of its forward graph `gm` like another one, as `y.detach()`, for all of
    that.

    It notes by which views a result came from the memory it lies in, and repeats them on the other result.
    That is such a view already: `x.t().detach()` was turned back, and a detached part was read from
    memory that is not there.
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
    """Tell if two nodes stand for tensors at one place in their memory, of types that may differ."""
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
    """Facts of AOTAutograd's about the user's results in the forward or inference graph being compiled.

    Attributes:
        start: position of the first among the outputs.
        count: how many there are; 0 where subclasses are taken apart, which have several outputs.
        remade: positions of those that the caller gets made anew, as views, and that nothing else is made of.
        constant: positions of those that ask for no gradient.
    """

    start: int
    count: int
    remade: frozenset[int]
    constant: frozenset[int]


def result_facts() -> ResultFacts:
    """Facts of AOTAutograd's about the results of the graph being compiled."""
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
    """Pairs (output, input) of the forward or inference graph being compiled: results that its caller gets as
    views of inputs.
    """
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
    """Pairs (output, input) of that graph: new contents of an input, which AOTAutograd copies into it after
    the call.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return () if metadata is None else tuple(enumerate(metadata.mutated_inp_runtime_indices))


def is_tangent(node: torch.fx.Node) -> bool:
    """Tell if an input of a backward graph is a gradient of a result."""
    return "tangents" in str(node.target)


def list_donated_positions() -> tuple[int, ...]:
    """Positions of saved tensors that only the backward graph being compiled will read, and only once.

    AOTAutograd finds them, and at run time refuses a backward that keeps its graph for another one.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None or not functorch_config.donated_buffer:
        return ()
    return tuple(metadata.bw_donated_idxs or ())
