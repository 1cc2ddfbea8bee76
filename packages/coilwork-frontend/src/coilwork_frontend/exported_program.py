"""Make a flat graph of an `ExportedProgram`: parameters, buffers and constants first, then a caller's inputs.

The flat graph is compiled like one of Dynamo's. `retarget` is the device that its tensors are moved to, so
that a program exported on a CPU, or from `meta` tensors, can be compiled for a GPU that is not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_frontend.errors import ExportError
from coilwork_frontend.retargeting import retarget_calls
from coilwork_frontend.torch_compat.exported import (
    find_fake_mode,
    get_bounds,
    ignore_new_symbols,
    list_guard_texts,
    name_symbol,
    trace_with,
)

StateKind: TypeAlias = Literal["parameter", "buffer", "constant"]
Leaf: TypeAlias = "int | Constant"
"""The position among the graph's inputs or results, or a value that is the same in every call."""

_STATE: Final[Mapping[InputKind, StateKind]] = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
_MUTATIONS: Final = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True, slots=True)
class Constant:
    """An input or result that is no tensor and was fixed when the program was exported."""

    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInput:
    """An input of the flat graph that a loaded model brings itself.

    Attributes:
        name: in the module's `state_dict`, or of a constant that the module's code made.
        is_persistent: False of buffers that are not in the `state_dict`.
    """

    name: str
    kind: StateKind
    is_persistent: bool
    value: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatProgram:
    """A flat graph with the nesting of its caller's inputs and results.

    Attributes:
        gm: takes the tensors of `state`, then the caller's tensors and numbers.
        inputs: fake tensors and sizes, one per input of `gm`.
        input_leaves: for each leaf of `(args, kwargs)`, its position behind the state, or its fixed value.
        input_names: names of these leaves, for messages.
        result_leaves: for each leaf of the results, its position among those of `gm`, or its fixed value;
            then those of `gradients`.
        gradients: the names of the parameters and inputs of which gradients are results, too.
        in_spec, out_spec: torch's descriptions of the nesting, without `gradients`.
        written: positions of inputs of `gm` that it overwrites.
    """

    gm: fx.GraphModule
    inputs: Sequence[Any]
    state: tuple[StateInput, ...]
    input_leaves: tuple[Leaf, ...]
    input_names: tuple[str, ...]
    result_leaves: tuple[Leaf, ...]
    gradients: tuple[str, ...]
    in_spec: Any
    out_spec: Any
    written: tuple[int, ...]


def flatten_program(
    program: ExportedProgram, retarget: str = "", *, target: str = "", loss: int | None = None
) -> FlatProgram:
    """Return the flat graph of `program`, on the devices it was exported on, or all on `retarget`, which is a
    `target` if it is named.

    State that nothing reads is left out of the graph. With `loss`, the number of a leaf of the results, the
    graph computes the gradients of that one, too: of the parameters and inputs that require one.

    Raises:
        ExportError: the program takes or gives what no package holds: objects of C++, effect tokens; or the
            result `loss` has no gradient.
    """
    signature = program.graph_signature
    gm = fx.GraphModule(program.graph_module, _copy_graph(program.graph))
    placeholders = gm.graph.find_nodes(op="placeholder")
    state: list[StateInput] = []
    inputs: list[fx.Node] = []
    leaves: list[Leaf] = []
    names: list[str] = []
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind in _STATE:
            if not node.users:
                gm.graph.erase_node(node)
                continue
            state.append(_read_state(program, spec))
            inputs.append(node)
        elif spec.kind is not InputKind.USER_INPUT:
            raise _refuse_kind("input", spec.kind)
        elif isinstance(spec.arg, ConstantArgument):
            gm.graph.erase_node(node)
            leaves.append(Constant(_check_constant(spec.arg.value)))
            names.append(spec.arg.name)
        else:
            leaves.append(len(inputs) - len(state))
            inputs.append(node)
            names.append(spec.arg.name)
    results = _return_results(gm, signature.output_specs, placeholders, signature.input_specs)
    _drop_known_checks(gm)
    gm.graph.lint()
    gm.recompile()
    gradients: tuple[str, ...] = ()
    if loss is not None:
        moving = {leaf: name for leaf, name in zip(leaves, names, strict=True) if isinstance(leaf, int)}
        wanted = _list_differentiable(state, inputs, moving)
        gm, gradients = _add_gradients(gm, _run_on_fakes(gm, inputs, ""), wanted, results, loss)
        results = (*results, *(len(_list_results(gm)) - len(gradients) + n for n in range(len(gradients))))
        inputs = gm.graph.find_nodes(op="placeholder")
    values = _run_on_fakes(gm, inputs, retarget, target)
    return FlatProgram(
        gm=gm,
        inputs=values,
        state=tuple(state),
        input_leaves=tuple(leaves),
        input_names=tuple(names),
        result_leaves=results,
        gradients=gradients,
        in_spec=program.call_spec.in_spec,
        out_spec=program.call_spec.out_spec,
        written=_list_written(gm),
    )


def list_state(program: ExportedProgram, module: torch.nn.Module | None = None) -> list[StateInput]:
    """Return all state of `program`, that which nothing reads included, in the order of its `state_dict`.

    `module` is what was exported, if that is known: only it has the order.
    """
    specs = {str(spec.target): spec for spec in program.graph_signature.input_specs if spec.kind in _STATE}
    order = list(program.state_dict) if module is None else list(module.state_dict())
    names = [name for name in order if name in program.state_dict]
    names += [name for name in program.state_dict if name not in names]
    state = []
    for name in names:
        value = program.state_dict[name]
        is_parameter = isinstance(value, torch.nn.Parameter)
        if name in specs:
            is_parameter = specs[name].kind is InputKind.PARAMETER
        kind: StateKind = "parameter" if is_parameter else "buffer"
        state.append(StateInput(name=name, kind=kind, is_persistent=True, value=value))
    others = [spec for name, spec in specs.items() if name not in program.state_dict]
    return state + [_read_state(program, spec) for spec in others]


def name_size(size: int | torch.SymInt) -> int | str:
    """Return a size, the name of the symbol that it is, or an empty text for an expression."""
    if isinstance(size, int):
        return size
    return name_symbol(size) or ""


def list_bounds(inputs: Sequence[Any]) -> dict[str, tuple[int, int]]:
    """Return the bounds of the symbols among the sizes of `inputs`, by name; no upper one is -1."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    sizes = [*(size for value in tensors for size in value.shape), *inputs]
    symbols = {name_symbol(size): size for size in sizes if isinstance(size, torch.SymInt)}
    return {name: get_bounds(size) for name, size in sorted(symbols.items()) if name}


@contextmanager
def enter_compilation(flat: FlatProgram) -> Iterator[None]:
    """Enter what torch sets up around a back end: a tracing context, and no recording of gradients.

    Raises:
        ExportError: compiling has added guards on sizes, so that the program serves fewer than it should.
    """
    mode = find_fake_mode(flat.inputs)
    before = list_guard_texts(mode)
    with torch.no_grad(), trace_with(mode):
        yield
    added = [guard for guard in list_guard_texts(mode) if guard not in before]
    if added:
        raise ExportError(
            "added-guards",
            f"the compiled program is only for sizes with {', '.join(added)}"[:1000],
            remedy="give such sizes, or bounds within which that is so, as dynamic_shapes",
        )


def check_results(flat: FlatProgram, results: int, functions: Iterable[str]) -> None:
    """Check that a program does all by itself: it has `results`, and its roles name `functions` of Python.

    Raises:
        ExportError: AOTAutograd or Python has a part in making results, which no package holds.
    """
    wanted = sum(not isinstance(leaf, Constant) for leaf in flat.result_leaves)
    names = tuple(functions)
    if results != wanted or names:
        raise ExportError(
            "unsupported-results",
            "results or inputs are changed around the compiled program, in Python",
            reason=f"{', '.join(names)}" if names else f"it has {results} results instead of {wanted}",
            remedy="take out what resizes or transposes inputs in place, or makes sparse tensors",
        )


def _copy_graph(graph: fx.Graph) -> fx.Graph:
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    return copied


def _read_state(program: ExportedProgram, spec: Any) -> StateInput:
    name, kind = str(spec.target), _STATE[spec.kind]
    is_persistent = kind == "parameter" or (kind == "buffer" and bool(spec.persistent))
    source = program.state_dict if is_persistent else program.constants
    value = source[name]
    if not isinstance(value, torch.Tensor):
        raise _refuse_kind("input", type(value).__name__)
    return StateInput(name=name, kind=kind, is_persistent=is_persistent, value=value)


def _return_results(
    gm: fx.GraphModule, specs: Sequence[Any], placeholders: Sequence[fx.Node], input_specs: Sequence[Any]
) -> tuple[Leaf, ...]:
    """Let `gm` return the caller's tensors and numbers alone, and write new contents of inputs itself."""
    output = gm.graph.output_node()
    (items,) = output.args
    assert isinstance(items, list | tuple)
    by_target = {spec.target: node for node, spec in zip(placeholders, input_specs, strict=True)}
    by_name = {node.name: node for node in placeholders}
    kept: list[Any] = []
    leaves: list[Leaf] = []
    with gm.graph.inserting_before(output):
        for item, spec in zip(items, specs, strict=True):
            if spec.kind in _MUTATIONS:
                is_buffer = spec.kind is OutputKind.BUFFER_MUTATION
                target = by_target[spec.target] if is_buffer else by_name[str(spec.target)]
                gm.graph.call_function(torch.ops.aten.copy_.default, (target, item))
            elif spec.kind is not OutputKind.USER_OUTPUT:
                raise _refuse_kind("result", spec.kind)
            elif isinstance(spec.arg, TensorArgument | SymIntArgument) and isinstance(item, fx.Node):
                leaves.append(len(kept))
                kept.append(item)
            elif isinstance(spec.arg, ConstantArgument | SymIntArgument) and not isinstance(item, fx.Node):
                leaves.append(Constant(_check_constant(item)))
            else:
                raise _refuse_kind("result", type(spec.arg).__name__)
    output.args = (tuple(kept),)
    return tuple(leaves)


def _check_constant(value: object) -> bool | int | float | str | None:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _refuse_kind("value", type(value).__name__)


def _refuse_kind(what: str, kind: object) -> ExportError:
    return ExportError(
        "unsupported-signature",
        f"the exported program has an {what} of the kind {kind}".replace("an result", "a result"),
        remedy="take and return tensors, integers and fixed values",
    )


def _list_written(gm: fx.GraphModule) -> tuple[int, ...]:
    """Return positions of inputs in whose memory an operator writes, views included."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    sources: dict[fx.Node, set[int]] = {node: {position} for position, node in enumerate(placeholders)}
    written: set[int] = set()
    for node in gm.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        reached: set[int] = set()
        for argument, given in zip(schema.arguments, node.args, strict=False):
            held = sources.get(given, set()) if isinstance(given, fx.Node) else set()
            if argument.alias_info is not None:
                reached |= held
                if argument.alias_info.is_write:
                    written |= held
        sources[node] = reached
    return tuple(sorted(written))


# ---- Gradients ----


def _add_gradients(
    gm: fx.GraphModule,
    values: Sequence[Any],
    wanted: Mapping[int, str],
    results: Sequence[Leaf],
    loss: int,
) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """Return `gm`, traced for fake `values`, with the gradients of a result as further results.

    They are those of the inputs `wanted`, names by position. Returns also the names of those that the result
    depends on.
    """
    found: list[str] = []
    sized, written = _list_size_sources(values), _list_written(gm)

    def run(*inputs: Any) -> tuple[Any, ...]:
        # torch knows what floats that sizes decide are made of if the graph uses each size by itself
        given = [
            value.expand(value.shape) if number in sized and number not in written else value
            for number, value in enumerate(inputs)
        ]
        with torch.enable_grad():
            leaves = {position: given[position].detach().requires_grad_() for position in wanted}
            outputs = gm(*(leaves.get(position, value) for position, value in enumerate(given)))
            place = results[loss]
            assert isinstance(place, int)
            made: Sequence[Any] = torch.autograd.grad(
                outputs[place], tuple(leaves.values()), allow_unused=True
            )
        pairs = [(name, one) for name, one in zip(wanted.values(), made, strict=True) if one is not None]
        found[:] = [name for name, _ in pairs]
        plain = (one.detach() if isinstance(one, torch.Tensor) else one for one in outputs)
        return (*plain, *(one for _, one in pairs))

    if not 0 <= loss < len(results) or isinstance(results[loss], Constant):
        raise _refuse_loss(loss, f"the program has {len(results)} results" if loss >= len(results) else "")
    mode = find_fake_mode(values)
    try:
        with mode, ignore_new_symbols(mode):
            traced = make_fx(run)(*values)
    # torch says in many ways that a result has no gradient
    except (RuntimeError, NotImplementedError) as error:
        raise _refuse_loss(loss, f"{type(error).__name__}: {error}"[:1000]) from error
    if not found:
        raise _refuse_loss(loss, "no parameter or input decides it")
    return traced, tuple(found)


def _list_size_sources(values: Sequence[Any]) -> frozenset[int]:
    """Return positions of tensors of which one size at least is the first symbol of its name."""
    seen: set[str] = set()
    sources: set[int] = set()
    for number, value in enumerate(values):
        sizes = value.shape if isinstance(value, torch.Tensor) else ()
        symbols = {one for one in map(name_size, sizes) if isinstance(one, str) and one}
        if symbols - seen:
            sources.add(number)
            seen |= symbols
    return frozenset(sources)


def _list_differentiable(
    state: Sequence[StateInput], inputs: Sequence[fx.Node], moving: Mapping[int, str]
) -> dict[int, str]:
    """Return the names of the inputs that require a gradient, by position; `moving` are the caller's."""
    wanted = {
        position: one.name
        for position, one in enumerate(state)
        if one.kind == "parameter" and one.value.requires_grad
    }
    for leaf, name in moving.items():
        value = inputs[len(state) + leaf].meta.get("val")
        if isinstance(value, torch.Tensor) and value.requires_grad:
            # an input may have the name of a parameter
            wanted[len(state) + leaf] = name if name not in wanted.values() else f"input {name}"
    return wanted


def _list_results(gm: fx.GraphModule) -> Sequence[Any]:
    (items,) = gm.graph.output_node().args
    assert isinstance(items, list | tuple)
    return items


def _refuse_loss(loss: int, reason: str) -> ExportError:
    return ExportError(
        "no-gradient",
        f"result {loss} of the exported program has no gradient",
        reason=reason or "it is the same in every call",
        remedy="name a result that is one float, and that parameters or inputs with requires_grad decide",
    )


# ---- Fake tensors ----

_METADATA_CHECK: Final = torch.ops.aten._assert_tensor_metadata.default


def _run_on_fakes(
    gm: fx.GraphModule, inputs: Sequence[fx.Node], retarget: str, target: str = ""
) -> list[Any]:
    """Give every node a fake value, on the device `retarget` if it is named; return those of the inputs."""
    if retarget:
        for part in gm.modules():
            if isinstance(part, fx.GraphModule):
                retarget_calls(part, retarget, target)
    mode = find_fake_mode([node.meta.get("val") for node in inputs])
    with mode, torch.no_grad(), ignore_new_symbols(mode):
        for name, value in [*gm.named_parameters(), *gm.named_buffers(), *_list_tensors(gm)]:
            _set_attribute(gm, name, mode.from_tensor(value.detach()).to(retarget or value.device))
        values = [_make_fake_like(node.meta["val"], retarget) for node in inputs]
        _Recorder(gm).run(*values)
    return values


def _drop_known_checks(gm: fx.GraphModule) -> None:
    """Erase the checks of element types and devices that torch writes in front of conversions, where they
    hold by the exported values. Values that are used once would count as used twice, and devices may be
    others.
    """
    for part in gm.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for node in part.graph.find_nodes(op="call_function", target=_METADATA_CHECK):
            value, *expected = _read_metadata_check(*node.args, **node.kwargs)
            fake = value.meta.get("val") if isinstance(value, fx.Node) else None
            if not isinstance(fake, torch.Tensor):
                continue
            sizes, strides, dtype, device, layout = expected
            known = dtype in (None, fake.dtype) and layout in (None, fake.layout)
            known = known and device in (None, fake.device, torch.device(fake.device.type))
            if known and sizes is None and strides is None:
                part.graph.erase_node(node)
        part.recompile()


def _read_metadata_check(
    value: Any,
    sizes: Any = None,
    strides: Any = None,
    dtype: Any = None,
    *,
    device: Any = None,
    layout: Any = None,
) -> tuple[Any, ...]:
    return value, sizes, strides, dtype, device, layout


def _list_tensors(gm: fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    for node in gm.graph.find_nodes(op="get_attr"):
        value = getattr(gm, str(node.target), None)
        if isinstance(value, torch.Tensor):
            yield str(node.target), value


def _set_attribute(gm: fx.GraphModule, name: str, value: torch.Tensor) -> None:
    gm._buffers.pop(name, None)
    gm._parameters.pop(name, None)
    setattr(gm, name, value)


def _make_fake_like(value: Any, retarget: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    device = torch.device(retarget) if retarget else value.device
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


class _Recorder(fx.Interpreter):
    """Runs a graph on fake tensors, and keeps what each node computes where passes look for it."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["val"] = n.meta["example_value"] = result
        return result
