"""The private torch API that the meta-package touches, and the supported range of torch.

Facts about 2.11 to 2.13 that matter here: `aot_module_simplified` takes different keyword sets, so only those common to
all are passed; DDP's optimizer decides whether to run a bucket on fake tensors by a counter that a back end must bump;
before 2.13 nothing says that checks of linear algebra have effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch._higher_order_ops.effects import _EffectType, _get_effect, _register_effectful_op
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols, statically_known_true
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from coilwork.errors import UnsupportedTorchError

OLDEST: Final = (2, 11)
NEWEST: Final = (2, 13)

BoxedCallable = Callable[[list[Any]], Any]
TreeSpec = pytree.TreeSpec


NO_ALIAS: Final = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)


class GraphCompiler(Protocol):
    """What AOTAutograd calls with each graph that it makes."""

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable: ...


@runtime_checkable
class HasDirect(Protocol):
    """A compiled graph that may also be called with its inputs one by one, under any grad mode."""

    @property
    def direct(self) -> Callable[..., Sequence[Any]] | None: ...


def check_torch_version(version: str = torch.__version__) -> None:
    """Refuse a torch outside the supported range.

    Raises:
        UnsupportedTorchError: with the versions that work.
    """
    parts = version.split("+")[0].split(".")
    try:
        found = (int(parts[0]), int(parts[1]))
    except (IndexError, ValueError):
        found = (0, 0)
    if not OLDEST <= found <= NEWEST:
        span = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise UnsupportedTorchError(
            "torch-version",
            f"torch {version} is not supported",
            reason=f"Coilwork works with torch {span}",
            remedy=f'pip install "torch>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"',
        )


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

    Where its wrapper would hand inputs and results through as they are, what it returns is the compiled graph itself.
    """
    direct: list[Callable[..., Any] | None] = []

    count = len(example_inputs)
    # it has to be switched off in calls; while a graph is compiled it is off
    autocast = torch._C._is_any_autocast_enabled()
    subclasses = _sees_subclasses(gm, example_inputs)

    def noting(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        made = inference(gm, example_inputs)
        compiled: object = made
        plain = not (autocast or subclasses) and len(example_inputs) == count and hands_through()
        direct.append(compiled.direct if plain and isinstance(compiled, HasDirect) else None)
        return made

    counters["aot_autograd"]["total"] += 1
    # Otherwise the tokens that order calls with effects are inputs and outputs of the graph, and None at run time.
    with functorch_config.patch(unlift_effect_tokens=True), checks_have_effects():
        compiled = aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=forward,
            bw_compiler=torch._dynamo.disable(backward),
            inference_compiler=noting,
            decompositions=decompositions,
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )
    if len(direct) == 1 and direct[0] is not None:
        return direct[0]
    wrapped: Callable[..., Any] = torch._dynamo.disable(compiled)
    return wrapped


def _sees_subclasses(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether an input or a result of a captured graph is, or may be, a tensor that AOTAutograd takes apart."""
    results = torch.fx.node.map_arg(
        gm.graph.output_node().args, lambda node: node.meta.get("example_value", node)
    )
    return any(
        isinstance(value, torch.fx.Node) or is_traceable_wrapper_subclass(value)
        for value in (*example_inputs, *pytree.tree_leaves(results))
    )


def hands_through() -> bool:
    """Whether the wrapper around the inference graph being compiled does nothing to inputs and results.

    It does if inputs are overwritten, results are views, random state is an input, sizes of results are remembered as
    changing, or the first call is a rehearsal. Of subclasses that it takes apart, the metadata tells the parts.
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

    torch 2.13 registers them for good. Before, it drops them as dead code, and a singular matrix goes unnoticed. The
    registration is undone because other back ends of those versions do not expect it.
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


def static_input_positions() -> tuple[int, ...]:
    """Positions of parameters and buffers among the inputs of the forward graph being compiled."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return ()
    return tuple(metadata.static_input_indices)


def is_static_input(value: object) -> bool:
    """Whether an input of a captured graph is a parameter or buffer of a module, as Dynamo marks them."""
    return isinstance(value, torch.Tensor) and (
        isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
    )


def version_of(tensor: torch.Tensor) -> int:
    """How often `tensor` has been written into; -1 where torch does not count, in tensors of inference mode."""
    return -1 if tensor.is_inference() else int(tensor._version)


def returned_outputs() -> int | None:
    """How many of the first outputs of the forward graph being compiled go to its caller; `None` if that is not known.

    The others are saved for the backward graph.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return None if metadata is None else int(metadata.num_forward)


def take_view_results() -> tuple[int, ...]:
    """Which of the forward graph's outputs go to its caller as views of what it makes.

    From now on AOTAutograd returns these as they come. It would make tensors of them whose writes are counted apart from those to what
    they show, since a custom function must not return views; what calls this does.
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


def aliased_inputs() -> tuple[tuple[int, int], ...]:
    """Pairs (output, input) of the forward or inference graph being compiled: results that its caller gets as views of inputs."""
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


def renewed_inputs() -> tuple[tuple[int, int], ...]:
    """Pairs (output, input) of that graph: new contents of an input, which AOTAutograd copies into it after the call."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return () if metadata is None else tuple(enumerate(metadata.mutated_inp_runtime_indices))


def are_equal_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are known to be equal, however they are written; to ask adds no guard."""
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in zip(one, other))


def run_on_fakes(node: torch.fx.Node) -> Any:
    """What `node`, an input or a call of an operator, gives for the fake tensors in its arguments' metadata."""
    if node.op == "placeholder":
        return node.meta["val"]
    target: Any = node.target
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)]
    with tensors[0].fake_mode if tensors else nullcontext():
        return target(*args, **kwargs)


def mode_of(value: torch.Tensor) -> AbstractContextManager[object]:
    """Where tensors are made that belong with `value`, which may be fake."""
    mode: AbstractContextManager[object] = value.fake_mode if isinstance(value, FakeTensor) else nullcontext()
    return mode


def is_view(target: object) -> bool:
    """Whether an operator returns memory of its first argument and changes nothing."""
    if not isinstance(target, OpOverload):
        return False
    aliases = [one.alias_info for one in target._schema.arguments if one.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


def donated_input_positions() -> tuple[int, ...]:
    """Positions of saved tensors that only the backward graph being compiled will read, and only once.

    AOTAutograd finds them, and at run time refuses a backward that keeps its graph for another one.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None or not functorch_config.donated_buffer:
        return ()
    return tuple(metadata.bw_donated_idxs or ())


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that tensors have in common if they share memory, while they live; fake tensors have one, too.

    Tensors of `torch.func` (batched, differentiated) have no memory of their own: theirs is that of what they wrap.
    """
    while is_functorch_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def is_functorch_tensor(tensor: torch.Tensor) -> bool:
    """Whether `tensor` stands for another one inside of `vmap`, `grad` or `jvp`; its sizes and strides need not be that one's."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def convolutions_use_tf32() -> bool:
    """Whether cuDNN may round `f32` operands of convolutions to TF32.

    `torch.backends.cudnn.allow_tf32` raises where recurrent layers are set otherwise than convolutions.
    """
    return bool(torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32")


def is_operator(value: object) -> bool:
    """Whether `value` is an operator overload or a higher-order operator; both print as their full name."""
    return isinstance(value, OpOverload | HigherOrderOperator)


def real_tensors() -> AbstractContextManager[object]:
    """While it is entered, operators compute on real tensors, although a back end is called under a fake mode."""
    mode: AbstractContextManager[object] = unset_fake_temporarily()
    return mode


class OperatorCounter(TorchDispatchMode):
    """Counts ATen operators other than views: what eager launches. Use as a context manager."""

    def __init__(self) -> None:
        initialize: Callable[[], None] = super().__init__  # the base class is not typed
        initialize()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += not is_view(func)
        return func(*args, **(kwargs or {}))


def tensors_in(values: object) -> list[torch.Tensor]:
    """Every tensor in nested `values`, in torch's order."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Nested `values` with each tensor replaced by `function` of it."""
    mapped: tuple[Any, ...] = pytree.tree_map_only(torch.Tensor, function, values)
    return mapped


def overwrites_nothing(target: object) -> bool:
    """True of an operator that overwrites no operand."""
    return isinstance(target, OpOverload) and not target._schema.is_mutable


def shares_nothing(target: object) -> bool:
    """True of an operator that overwrites no operand and whose results have memory of their own."""
    if not isinstance(target, OpOverload) or not overwrites_nothing(target):
        return False
    return all(result.alias_info is None for result in target._schema.returns)


def overwritten_operands(node: torch.fx.Node) -> tuple[object, ...]:
    """What a call of an operator overwrites; nothing for other nodes."""
    if not isinstance(node.target, OpOverload):
        return ()
    arguments = enumerate(node.target._schema.arguments)
    return tuple(
        node.args[k] if k < len(node.args) and not argument.kwarg_only else node.kwargs.get(argument.name)
        for k, argument in arguments
        if argument.is_write
    )


def draws_numbers(target: object) -> bool:
    """True of an operator that reads a random generator."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def has_sizes_from_data(captured: torch.fx.GraphModule) -> bool:
    """Whether a tensor in Dynamo's graph, or in one nested in it, has a size that depends on values which only run time knows."""
    parts = [part for part in captured.modules() if isinstance(part, torch.fx.GraphModule)]
    values = [node.meta.get("example_value") for part in parts for node in part.graph.nodes]
    sizes: list[Any] = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    return any(isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size)) for size in sizes)


def guards_taken_sizes(captured: torch.fx.GraphModule) -> bool:
    """Whether tracing has decided something by a size that torch put in the place of one from data."""
    values = [node.meta.get("example_value") for node in captured.graph.nodes]
    sizes: list[Any] = [
        size
        for value in values
        for size in (value.shape if isinstance(value, torch.Tensor) else (value,))
        if isinstance(size, torch.SymInt)
    ]
    if not sizes:
        return False
    env = sizes[0].node.shape_env
    replaced = [new for old, new in env.replacements.items() if free_unbacked_symbols(old)]
    taken = {symbol for new in replaced for symbol in new.free_symbols}
    return any(taken & guard.expr.free_symbols for guard in env.guards)


def symbol_facts(environment: ShapeEnv) -> list[str]:
    """What `environment` holds for true of its symbols (guards, assertions) and in whose places others stand, as sorted texts."""
    facts = {str(fact) for fact in environment.get_axioms()}
    return sorted(facts | {f"{old} = {new}" for old, new in environment.replacements.items()})


def leaves_of(values: object) -> list[Any]:
    """Everything in nested `values` that is no container, in torch's order."""
    return list(pytree.tree_leaves(values))


def nesting_of(values: object) -> TreeSpec:
    """How `values` are nested."""
    return pytree.tree_structure(values)


def nested_like(leaves: list[Any], nesting: TreeSpec) -> Any:
    """`leaves`, in torch's order, nested as `nesting` says."""
    return pytree.tree_unflatten(leaves, nesting)


def map_leaves(function: Callable[[Any], Any], values: Any) -> Any:
    """Nested `values` with each leaf replaced by `function` of it."""
    return pytree.tree_map(function, values)
