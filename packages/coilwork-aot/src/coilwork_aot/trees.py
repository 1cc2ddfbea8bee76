"""Nestings of inputs and results, as JSON, and values taken apart and put together along them.

A nesting is a leaf, or a container with its children: `tuple`, `list`, `dict` with its keys, or a class that
is registered with torch's pytrees, by the name it was registered under. A class is looked up among those that
this process has registered; nothing is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from coilwork_aot.errors import InputError, PackageError
from coilwork_aot.torch_compat import describe_class, find_class, read_spec

LEAF: Final = "leaf"
DEEPEST: Final = 64


@dataclass(frozen=True, slots=True)
class Tree:
    """A nesting.

    Attributes:
        kind: `leaf`, `tuple`, `list`, `dict`, or the name of a registered class.
        keys: of a `dict`, its keys; of a class, what torch tells apart its values by.
        children: the nestings inside.
    """

    kind: str = LEAF
    keys: Any = None
    children: tuple[Tree, ...] = ()

    @property
    def leaves(self) -> int:
        """Return how many leaves it has."""
        return 1 if self.kind == LEAF else sum(child.leaves for child in self.children)


def encode_tree(spec: Any) -> Tree:
    """Return the nesting that torch describes as `spec`.

    Raises:
        PackageError: a key is no text, number or None, or a class has no serialised name.
    """
    if spec.is_leaf():
        return Tree()
    kind, context, children = read_spec(spec)
    nested = tuple(map(encode_tree, children))
    if kind is tuple or kind is list:
        return Tree(kind.__name__, None, nested)
    if kind is dict:
        if not all(key is None or isinstance(key, str | int) for key in context):
            raise PackageError(
                "unknown-nesting",
                f"a dict has the keys {context!r}",
                remedy="name entries by texts or numbers",
            )
        return Tree("dict", list(context), nested)
    name, keys = describe_class(kind, context)
    return Tree(name, keys, nested)


def flatten(tree: Tree, value: Any, path: str, leaves: list[Any]) -> None:
    """Append the leaves of `value` to `leaves`.

    Raises:
        InputError: it is nested otherwise; the message names the place.
    """
    if tree.kind == LEAF:
        leaves.append(value)
        return
    if tree.kind == "dict":
        if not isinstance(value, dict) or value.keys() != set(tree.keys):
            raise _refuse(path, value, f"a dict with the keys {tree.keys}")
        for key, child in zip(tree.keys, tree.children, strict=True):
            flatten(child, value[key], f"{path}[{key!r}]", leaves)
        return
    if tree.kind in ("tuple", "list"):
        kind = tuple if tree.kind == "tuple" else list
        if not isinstance(value, kind) or len(value) != len(tree.children):
            raise _refuse(path, value, f"a {tree.kind} of {len(tree.children)}")
        items: Sequence[Any] = value
    else:
        found = find_class(tree.kind)
        if found is None or not found.accepts(value):
            raise _refuse(path, value, tree.kind)
        items, context = found.flatten(value)
        if context != found.read_context(tree.keys) or len(items) != len(tree.children):
            raise _refuse(path, value, f"{tree.kind} as it was exported")
    for number, (child, item) in enumerate(zip(tree.children, items, strict=True)):
        flatten(child, item, f"{path}[{number}]", leaves)


def _refuse(path: str, value: object, wanted: str) -> InputError:
    shown = f"a {type(value).__name__}"
    if isinstance(value, tuple | list):
        shown = f"a {type(value).__name__} of {len(value)}"
    elif isinstance(value, dict):
        shown = f"a dict with the keys {list(value)}"
    return InputError("nesting", f"{path} is {shown}", reason=f"the model was exported with {wanted}")


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """Return `leaves` nested as `tree` says.

    A class that is not registered here becomes a dict, if its keys are as many texts as it has parts.
    """
    return _build(tree, iter(leaves))


def _build(tree: Tree, leaves: Any) -> Any:
    if tree.kind == LEAF:
        return next(leaves)
    parts = [_build(child, leaves) for child in tree.children]
    if tree.kind == "tuple":
        return tuple(parts)
    if tree.kind == "list":
        return parts
    if tree.kind == "dict":
        return dict(zip(tree.keys, parts, strict=True))
    found = find_class(tree.kind)
    if found is None:
        return dict(zip(tree.keys, parts, strict=True))
    return found.unflatten(parts, found.read_context(tree.keys))


def check_known(tree: Tree, *, as_dict: bool) -> None:
    """Check that the classes in `tree` are registered here; with `as_dict`, or can be dicts instead.

    Raises:
        PackageError: one is not.
    """
    known = tree.kind in (LEAF, "tuple", "list", "dict") or _can_read(tree)
    if not known and not (as_dict and _has_names(tree)):
        raise PackageError(
            "unknown-nesting",
            f"the model takes or gives a {tree.kind}, which is not registered here",
            remedy="import the module that registers it with torch.utils._pytree before loading",
        )
    for child in tree.children:
        check_known(child, as_dict=as_dict)


def _can_read(tree: Tree) -> bool:
    found = find_class(tree.kind)
    if found is None:
        return False
    try:
        found.read_context(tree.keys)
    # the functions that a class is registered with may raise anything
    except Exception:  # noqa: BLE001
        return False
    return True


def _has_names(tree: Tree) -> bool:
    keys = tree.keys
    return (
        isinstance(keys, list)
        and len(keys) == len(tree.children)
        and all(isinstance(key, str) for key in keys)
    )


# ---- JSON ----


def convert_to_json(tree: Tree) -> Any:
    """Return the form that the manifest holds."""
    if tree.kind == LEAF:
        return LEAF
    return {"kind": tree.kind, "keys": tree.keys, "children": [convert_to_json(one) for one in tree.children]}


def read_from_json(value: Any, depth: int = 0) -> Tree:
    """Inverse of `tree_to_json`.

    Raises:
        ValueError, TypeError, KeyError: it is something else, or too deep.
    """
    if value == LEAF:
        return Tree()
    if depth > DEEPEST or not isinstance(value["kind"], str) or value.keys() != {"kind", "keys", "children"}:
        raise ValueError("a nesting is too deep, or none")
    children = tuple(read_from_json(child, depth + 1) for child in value["children"])
    keys = value["keys"]
    if value["kind"] == "dict" and not (
        isinstance(keys, list) and len({*keys}) == len(keys) == len(children)
    ):
        raise ValueError("a dict has other keys than entries")
    return Tree(value["kind"], keys, children)
