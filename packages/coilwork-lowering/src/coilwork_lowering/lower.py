"""The driver of lowering: one pass over an FX graph, node by node, into loop IR."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from coilwork_ir.buffers import Buffer
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.loops import Graph
from coilwork_ir.loops.layouts import release_results
from coilwork_ir.operators import find_target_info
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.size_assertions import assert_guards, lower_assertion, lower_divisor
from coilwork_lowering.building.size_table import SizeTable, solve_terms
from coilwork_lowering.building.values import NumberValue, TensorValue, Value, make_coordinate_symbols
from coilwork_lowering.errors import LoweringError, MistracedError, make_refusal
from coilwork_lowering.extern.asynchronous import lower_wait, settle
from coilwork_lowering.extern.calls import call_extern, list_results
from coilwork_lowering.extern.quantization import find_quantized_type, require_kernel
from coilwork_lowering.facts.alias_analysis import is_wait, list_mutated_operands
from coilwork_lowering.facts.fx_nodes import get_operator_name, get_origin, is_view
from coilwork_lowering.facts.operand_checks import has_valid_shapes, has_valid_types
from coilwork_lowering.facts.scalar_overflow import has_valid_numbers
from coilwork_lowering.graph_boundary import GraphInputs, GraphOutputs, list_returned, list_symbol_inputs
from coilwork_lowering.guard_watch import AddedGuard, GuardWatch
from coilwork_lowering.higher_order.associative_scan import (
    Traced,
    expand_other_scans,
    extract_combination,
    is_associative_scan,
    lower_associative_scan,
)
from coilwork_lowering.higher_order.flex_attention import (
    is_expressible,
    is_flex_attention,
    lower_flex_attention,
)
from coilwork_lowering.higher_order.regions import Nested, lower_cond, lower_rounds, lower_while
from coilwork_lowering.higher_order.rounds import lower_row_access, store_row, take_row
from coilwork_lowering.higher_order.scan import unroll_scans
from coilwork_lowering.higher_order.stacked_loops import expand_stacked_loops
from coilwork_lowering.higher_order.wrapper_expansion import (
    Note,
    expand_control_deps,
    expand_functionalized_calls,
    expand_meanings,
)
from coilwork_lowering.ops.random import skip_stream
from coilwork_lowering.options import LoweringOptions
from coilwork_lowering.python_arithmetic import DIVISIONS, compute, is_number_function
from coilwork_lowering.registry import RULES
from coilwork_lowering.reinplacing import Reinplacing, Update, list_buffers
from coilwork_lowering.rules import Call, NotLowered
from coilwork_lowering.torch_compat.operators import Overload, get_schema
from coilwork_lowering.torch_compat.sizes import is_part_of_sizes

if TYPE_CHECKING:
    import sympy


# result


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A lowered graph and what travels beside it.

    Attributes:
        graph: the loop IR.
        constants: the tensors that `graph.constants` name by key.
        symbols: pairs (IR symbol, torch's sympy symbol) of every size symbol.
        guards: what lowering demanded of sizes; there should be none.
        updates: which updates overwrite what they are an update of, and why others do not.
        copies: views that were laid out in memory, and why.
    """

    graph: Graph
    constants: Mapping[str, torch.Tensor]
    symbols: tuple[tuple[Expr, sympy.Symbol], ...]
    guards: tuple[AddedGuard, ...] = ()
    updates: tuple[Update, ...] = ()
    copies: tuple[str, ...] = ()


# driver

DEFAULTS: Final = LoweringOptions()
_REGIONS: Final[Mapping[str, Callable[[Builder, torch.fx.Node, tuple[Value, ...], Nested], Value]]] = (
    MappingProxyType({"cond": lower_cond, "while_loop": lower_while, "run_rounds": lower_rounds})
)


def lower(
    gm: torch.fx.GraphModule,
    *,
    name: str,
    options: LoweringOptions = DEFAULTS,
    example_strides: Sequence[Sequence[int | torch.SymInt] | None] | None = None,
) -> Lowered:
    """Return the loop IR of an ATen graph as AOTAutograd hands it to a compiler.

    Of Python's numbers, only integers can be results. A boolean becomes 0 or 1, another number that is
    computed at run time a tensor of no dimensions, and a constant that is no integer None. `coilwork` gives
    them back their types.

    Inputs are described by the placeholders' `meta["val"]`; `example_strides`, one entry per placeholder
    (None: keep), overrides strides, which a backward graph's metadata may state wrongly.

    Raises:
        LoweringError: the graph holds something that no node of the loop IR, extern calls included, can say.
    """
    watch = GuardWatch(gm)
    guards: list[AddedGuard] = []
    expanded = _expand_higher_order(
        gm, lambda node: guards.extend(watch.take_added(get_origin(node))), options
    )
    lowered = _Lowering(expanded, name=name, options=options, example_strides=example_strides).run()
    return replace(lowered, guards=(*guards, *lowered.guards))


def _expand_higher_order(
    gm: torch.fx.GraphModule, note: Note, options: LoweringOptions
) -> torch.fx.GraphModule:
    """`gm` with the higher-order operators that stand for other calls expanded, nested ones included."""
    called = expand_functionalized_calls(expand_control_deps(gm), note)
    expanded = expand_meanings(called, note, lambda node, module: _is_attention(node, module, options))
    expanded = expand_stacked_loops(expanded)
    expanded = unroll_scans(expand_other_scans(expanded, lambda f: _is_of_scalars(f, options)))
    return gm if expanded is gm else _expand_higher_order(expanded, note, options)


def _is_of_scalars(function: torch.fx.GraphModule, options: LoweringOptions) -> bool:
    """Tell if `function`, which combines two tuples of tensors, does so element by element."""
    try:
        traced = _trace_combining(
            function, options, SizeTable(list_symbol_inputs(function), solve_terms(function))
        )
    except LoweringError:
        return False
    return extract_combination(traced, make_coordinate_symbols("i", traced.results[0].shape)) is not None


def _is_attention(node: torch.fx.Node, module: torch.fx.GraphModule, options: LoweringOptions) -> bool:
    """Tell if `node`, attention with the user's functions, is one node."""

    def trace(function: torch.fx.GraphModule) -> Traced:
        try:
            sizes = SizeTable(list_symbol_inputs(function), solve_terms(function))
            return _trace_combining(function, options, sizes)
        except LoweringError as cause:
            raise NotLowered(str(cause)) from cause

    return is_expressible(node, module, trace)


def _trace_combining(function: torch.fx.GraphModule, options: LoweringOptions, sizes: SizeTable) -> Traced:
    """Return the graph of a combining function, lowered."""
    # what it demands of sizes is told as the scan's demand
    expanded = _expand_higher_order(function, lambda node: None, options)
    inner = _Lowering(expanded, name="combine", options=options, example_strides=None, sizes=sizes)
    inner.results.is_region = True
    inner.run()
    results = [inner.value(item) for item in list_returned(expanded.graph.output_node())]
    return Traced(
        inputs=inner.entries.inputs,
        nodes=inner.builder.nodes,
        results=[value for value in results if isinstance(value, TensorValue)],
    )


class _Lowering:
    """The state of one pass: values of FX nodes so far, and the builder."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        *,
        name: str,
        options: LoweringOptions,
        example_strides: Sequence[Sequence[int | torch.SymInt] | None] | None,
        sizes: SizeTable | None = None,
    ) -> None:
        self.gm = gm
        self.name = name
        self.options = options
        self.sizes = SizeTable(list_symbol_inputs(gm), solve_terms(gm)) if sizes is None else sizes
        self.builder = Builder(options=options, sizes=self.sizes)
        self.values: dict[torch.fx.Node, Value] = {}
        self.overwriting = Reinplacing(gm.graph, self.values, self.builder)
        self.entries = GraphInputs(gm, self.builder, strides=example_strides)
        self.results = GraphOutputs(self.builder, self.overwriting)

    def run(self) -> Lowered:
        watch = GuardWatch(self.gm)
        guards: list[AddedGuard] = []
        is_entered = self.results.is_region
        for node in self.gm.graph.nodes:
            origin = get_origin(node)
            self.builder.origins = (origin,)
            self.builder.hint = node.name
            if not is_entered and node.op != "placeholder":
                is_entered = True
                assert_guards(self.builder, self.gm)
            self.require_strides(node)
            match node.op:
                case "placeholder":
                    self.values[node] = self.entries.input(node)
                case "get_attr":
                    self.values[node] = self.entries.attribute(node)
                case "call_function":
                    for displaced in self.overwriting.find_displaced(node):
                        self.values[displaced] = self.copy_away(self.values[displaced])
                        self.overwriting.note(displaced)
                    self.let_rest(node)
                    self.values[node] = self.lower_call(node)
                case "output":
                    if self.results.is_region:
                        # who runs the region knows nothing of what is in flight in it
                        settle(self.builder, self.builder.in_flight.memory(), written=True)
                    for item in list_returned(node):
                        self.results.add(item, self.value(item))
                    self.builder.define_sizes()
                case _:
                    raise self.refuse(node, "graph-form", f"{node.op} nodes are not part of an ATen graph")
            if node in self.values:
                self.overwriting.note(node)
            guards += watch.take_added(origin)
        graph = Graph(
            name=self.name,
            symbols=self.entries.symbols(),
            inputs=tuple(self.entries.inputs),
            constants=tuple(self.entries.constants),
            nodes=tuple(self.builder.nodes),
            outputs=tuple(self.results.outputs),
        )
        return Lowered(
            graph=release_results(graph, self.results.unseen),
            constants=self.entries.tensors,
            symbols=self.sizes.pairs,
            guards=tuple(guards),
            updates=tuple(self.overwriting.decided),
            copies=tuple(self.builder.copies),
        )

    def lower_call(self, node: torch.fx.Node) -> Value:
        """`call`, whose errors name the node."""
        try:
            return self.call(node)
        except CoilworkIRError as error:
            if error.origins or isinstance(error, MistracedError):
                raise
            raise self.fault(node, error) from error
        # Whatever a rule raises is its fault, and no reason to do without the rest of the graph.
        except Exception as error:
            raise self.fault(node, error) from error

    def call(self, node: torch.fx.Node) -> Value:
        target = node.target
        if target is operator.getitem:
            sequence = self.value(node.args[0])
            if isinstance(sequence, tuple) and isinstance(node.args[1], int):
                return sequence[node.args[1]]
            raise self.refuse(node, "graph-form", f"item {node.args[1]!r} of a value that is no list")
        if isinstance(target, Overload):
            return self.operator(node, target)
        if is_number_function(target):
            operands = tuple(self.value(a) for a in node.args)
            if target in DIVISIONS and isinstance(operands[0], Expr | int):
                lower_divisor(self.builder, operands[1], DIVISIONS[target])
            try:
                return compute(target, operands)
            except NotLowered as cause:
                return self.symbolic_result(node, cause)
        if get_operator_name(node) == "with_effects":
            return self.effectful(node)
        region = _REGIONS.get(get_operator_name(node))
        if region is not None:
            return region(self.builder, node, tuple(self.value(a) for a in node.args), self.lower_nested)
        if target in (take_row, store_row):
            return lower_row_access(self.builder, target, tuple(self.value(a) for a in node.args))
        if is_associative_scan(node):
            rows = tuple(self.value(a) for a in node.args)
            return lower_associative_scan(
                self.builder,
                node,
                rows,
                lambda function: _trace_combining(function, self.options, self.sizes),
            )
        if is_flex_attention(node):
            return lower_flex_attention(
                self.builder,
                node,
                self.gm,
                self.value,
                lambda function: _trace_combining(function, self.options, self.sizes),
            )
        raise self.refuse(
            node,
            "no-lowering",
            f"{get_operator_name(node)} has no lowering",
            reason="higher-order operators and Python functions cannot be called from the compiled program",
        )

    def let_rest(self, node: torch.fx.Node) -> None:
        """Wait for operators that still write what `node` reads, or use what it overwrites."""
        if node.target is operator.getitem or is_view(node) or is_wait(node.target):
            return
        for operands, written in ((node.all_input_nodes, False), (list_mutated_operands(node), True)):
            values = (self.values.get(operand) for operand in operands)
            roots = (self.builder.buffers.root(name) for value in values for name in list_buffers(value))
            settle(self.builder, tuple(dict.fromkeys(roots)), written=written)

    def require_strides(self, node: torch.fx.Node) -> None:
        """Every tensor of a program lies in memory with strides."""
        for _, fake in list_results(node.meta.get("val")):
            if isinstance(fake, torch.Tensor) and fake.layout != torch.strided:
                raise self.refuse(
                    node, "layout", f"{node.name} is a tensor of layout {fake.layout}, without strides"
                )

    def copy_away(self, value: Value) -> Value:
        """`value` in memory of its own."""
        match value:
            case TensorValue():
                return self.builder.copy(self.builder.current(value))
            case NumberValue(scalar):
                return NumberValue(self.builder.read(self.builder.store_number(scalar), ()))
            case tuple():
                return tuple(self.copy_away(item) for item in value)
            case _:
                return value

    def lower_nested(
        self,
        gm: torch.fx.GraphModule,
        name: str,
        operands: list[TensorValue | None],
        results: tuple[Buffer, ...],
    ) -> Graph:
        """Return a branch or loop body: inputs laid out as the operands, outputs as `results`, sizes
        shared.
        """
        origins, hint = self.builder.origins, self.builder.hint
        # what it demands of sizes is told as the region's demand, when that is lowered
        expanded = _expand_higher_order(gm, lambda node: None, self.options)
        inner = _Lowering(expanded, name=name, options=self.options, example_strides=None, sizes=self.sizes)
        inner.entries.operands = operands
        inner.results.is_region = True
        inner.results.buffers = results
        lowered = inner.run()
        for key, tensor in lowered.constants.items():
            if self.entries.tensors.setdefault(key, tensor) is not tensor:
                raise LoweringError("graph-form", f"two constants are called {key}", origins=origins)
        self.builder.origins, self.builder.hint = origins, hint
        return lowered.graph

    def symbolic_result(self, node: torch.fx.Node, cause: Exception) -> Value:
        """torch's own expression for a number, where ours could not follow the arithmetic."""
        fake = node.meta.get("val")
        if isinstance(fake, torch.SymInt):
            return self.sizes.expr(fake)
        if isinstance(fake, bool | int | float):
            return fake
        raise self.refuse(node, "symbol", f"{get_operator_name(node)} on sizes", reason=str(cause)) from cause

    def operator(self, node: torch.fx.Node, target: Overload) -> Value:
        name = get_operator_name(node)
        info = find_target_info(name)
        if info.is_size_query:
            return self.plain_number(node)
        if info.is_no_op:
            return None
        if name == "aten._assert_scalar.default":
            lower_assertion(self.builder, self.value(node.args[0]), str(node.args[1]), node)
            return None
        if torch.Tag.inplace_view in target.tags:
            raise self.refuse(node, "no-lowering", f"{name} changes the shape of an existing tensor")
        call = self.bind(node, target, name, args=node.args, result=node.meta.get("val"))
        rule = RULES.get(name)
        if self.options.falls_back(name, node.name):
            skip_stream(self.builder, call, None if rule is None else rule.lower)
        if rule is not None and not self._is_for_aten(call, target):
            mark = self.builder.mark()
            try:
                return self.builder.lay_out_long_maps(rule.lower(self.builder, call))
            except NotLowered:
                self.builder.rewind(mark)
        if is_wait(target):
            value = call.tensor(get_schema(target).arguments[0].name)
            root = self.builder.buffers.root(value.buffer.name)
            inputs = {entry.name for entry in self.entries.inputs if isinstance(entry, Buffer)}
            borrowed = self.results.is_region and root in inputs
            return lower_wait(self.builder, value, borrowed=borrowed)
        if name == "aten._local_scalar_dense.default" and not isinstance(node.meta.get("val"), torch.SymInt):
            return self.float_item(call)
        # nobody reads a result without elements, but eager may refuse the call
        unread = _has_no_elements(call.result) and not _accepts(target, call)
        return call_extern(self.builder, call, target, effect=unread)

    def _is_for_aten(self, call: Call, target: Overload) -> bool:
        return (
            self.options.falls_back(call.target, call.node.name)
            or call.touches_opaque
            # programs allocate none
            or call.arguments.get("pin_memory") is True
            or not _accepts(target, call)
        )

    def effectful(self, node: torch.fx.Node) -> Value:
        """`with_effects(token, operator, *args)`: a call that stays where it is; the token it gets is the one
        it gives.
        """
        token, target, *args = node.args
        if not isinstance(target, Overload):
            raise self.refuse(node, "no-lowering", f"with_effects of {target} has no lowering")
        _, *results = node.meta["val"]
        result = results[0] if len(results) == 1 else tuple(results) or None
        call = self.bind(node, target, str(target), args=args, result=result)
        values = call_extern(self.builder, call, target, effect=True)
        # one result may be a list
        returned = values if isinstance(values, tuple) and len(results) != 1 else (values,)
        return (self.value(token), *returned)

    def float_item(self, call: Call) -> Value:
        """Return the number that a one-element tensor holds stays in that tensor until somebody computes with
        it.
        """
        self.builder.reads_numbers = True
        value = call.tensor("self")
        number = self.builder.read(value, [as_expr(0)] * len(value.shape))
        if isinstance(call.result, torch.SymFloat) and is_part_of_sizes(call.result, self.gm):
            # a size may be computed when the tensor holds something else already
            stored = self.builder.read(self.builder.store_number(number), ())
            self.sizes.float(call.result, stored)
        return NumberValue(number)

    def plain_number(self, node: torch.fx.Node) -> Value:
        fake = node.meta.get("val")
        if isinstance(fake, torch.SymInt | int):
            return self.sizes.expr(fake)
        raise self.refuse(node, "graph-form", f"{get_operator_name(node)} without a value in its metadata")

    def bind(
        self, node: torch.fx.Node, target: Overload, name: str, *, args: Sequence[Any], result: Any
    ) -> Call:
        """Arguments by the schema's names, with defaults."""
        arguments: dict[str, Value] = {}
        fakes: dict[str, Any] = {}
        for position, formal in enumerate(get_schema(target).arguments):
            if position < len(args) and not formal.kwarg_only:
                argument = args[position]
            elif formal.name in node.kwargs:
                argument = node.kwargs[formal.name]
            else:
                argument = formal.default_value if formal.has_default_value() else None
            arguments[formal.name] = self.value(argument)
            fakes[formal.name] = _fake(argument)
        require_kernel(node, target, arguments, self.builder.origins[0])
        return Call(
            node=node,
            target=name,
            arguments=arguments,
            fakes=fakes,
            result=result,
            updates=self.overwriting,
            quantized=find_quantized_type(target, arguments),
        )

    def value(self, argument: Any) -> Value:
        """Return an FX argument as a lowered value."""
        match argument:
            case torch.fx.Node():
                value = self.values[argument]
                return self.builder.current(value) if isinstance(value, TensorValue) else value
            case list() | tuple():
                return tuple(self.value(item) for item in argument)
            case slice():
                raise LoweringError("argument", f"a Python slice as argument: {argument!r}")
            case torch.SymInt():
                return self.sizes.expr(argument)
            case (
                None
                | bool()
                | int()
                | float()
                | complex()
                | str()
                | torch.dtype()
                | torch.device()
                | torch.layout()
                | torch.memory_format()
            ):
                return argument
        raise LoweringError("argument", f"an argument of class {type(argument).__name__}: {argument!r}")

    def fault(self, node: torch.fx.Node, error: Exception) -> LoweringError:
        """Return the error for `node`, whose rule failed with `error`."""
        rule = "the rule" if get_operator_name(node) in RULES else "the lowering"
        what = f"{rule} of {get_operator_name(node)} failed"
        reason = str(error) if isinstance(error, CoilworkIRError) else f"{type(error).__name__}: {error}"
        return self.refuse(node, "rule-failed", what, reason=reason)

    def refuse(self, node: torch.fx.Node, code: str, what: str, *, reason: str = "") -> LoweringError:
        return make_refusal(node, code, what, origins=self.builder.origins, reason=reason)


def _accepts(target: Overload, call: Call) -> bool:
    """Tell if eager takes the types, numbers and shapes of the call, as far as tables know."""
    return (
        has_valid_types(target, call.fakes)
        and has_valid_numbers(target, call.fakes)
        and has_valid_shapes(target, call.fakes)
    )


def _has_no_elements(result: object) -> bool:
    if not isinstance(result, torch.Tensor):
        return False
    return any(type(size) is int and size == 0 for size in result.shape)


def _fake(argument: Any) -> Any:
    if isinstance(argument, torch.fx.Node):
        return argument.meta.get("val")
    if isinstance(argument, list | tuple):
        return [_fake(item) for item in argument]
    return argument
