"""Private torch API: pytrees, and the classes that are registered with them, in torch 2.11 to 2.13."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from torch.utils import _pytree as pytree

from coilwork_aot.errors import PackageError

# Torch reads their contexts by importing the module that these name.
_IMPORTING: Final = (defaultdict,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeClass:
    """A registered class: how its values are taken apart and put together."""

    accepts: Callable[[Any], bool]
    flatten: Callable[[Any], tuple[Sequence[Any], Any]]
    unflatten: Callable[[Sequence[Any], Any], Any]
    read_context: Callable[[Any], Any]


def list_leaves(value: Any) -> list[Any]:
    """Return the leaves of a nesting, in order."""
    return list(pytree.tree_leaves(value))


def read_spec(spec: Any) -> tuple[type, Any, Sequence[Any]]:
    """Return the class, the context and the children of a nesting."""
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    return spec.type, spec.context, children


def describe_class(kind: type, context: Any) -> tuple[str, Any]:
    """Return the name that `kind` is registered under, and `context` as JSON.

    Raises:
        PackageError: it has no such name.
    """
    node = None if kind in _IMPORTING else pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    name = None if node is None else node.serialized_type_name
    if node is None or not isinstance(name, str) or name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        raise PackageError(
            "unknown-nesting",
            f"the model takes or gives a {kind.__name__}, which has no serialised name",
            remedy="register it by torch.utils._pytree.register_pytree_node with serialized_type_name",
        )
    dump = node.to_dumpable_context
    return name, context if dump is None else dump(context)


def find_class(name: str) -> TreeClass | None:
    """Return the class that is registered under `name` in this process; None if there is none."""
    kind = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    if kind is None or kind in _IMPORTING:
        return None
    functions, serialized = pytree.SUPPORTED_NODES[kind], pytree.SUPPORTED_SERIALIZED_TYPES[kind]
    load = serialized.from_dumpable_context
    return TreeClass(
        accepts=lambda value: pytree._get_node_type(value) is kind,
        flatten=cast("Callable[[Any], tuple[Sequence[Any], Any]]", functions.flatten_fn),
        unflatten=cast("Callable[[Sequence[Any], Any], Any]", functions.unflatten_fn),
        read_context=(lambda context: context) if load is None else load,
    )
