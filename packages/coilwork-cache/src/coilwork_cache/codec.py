"""How values become bytes and return, without pickle: decoding data can't run code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

from coilwork_cache.errors import CodecError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

T = TypeVar("T")
U = TypeVar("U")


class Codec(Protocol[T]):
    """Values of one type to bytes and back: `decode(encode(value)) == value`.

    Equal values give equal bytes. Neither direction may execute what it reads; pickle and marshal are out.
    """

    @property
    def name(self) -> str:
        """ASCII name with format version, such as "json-1". Entries of another name don't decode."""
        ...

    def encode(self, value: T) -> bytes:
        """Raises CodecError if `value` is not among what this codec documents."""
        ...

    def decode(self, data: bytes) -> T:
        """Raises CodecError, and nothing else, if `data` is not what `encode` writes."""
        ...


class BytesCodec:
    """Bytes as they are."""

    @property
    def name(self) -> str:
        return "bytes-1"

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes) -> bytes:
        return data


class JsonCodec:
    """JSON objects: string keys, finite numbers. Tuples become lists; keys come back sorted."""

    @property
    def name(self) -> str:
        return "json-1"

    def encode(self, value: dict[str, JsonValue]) -> bytes:
        return dump_json(value)

    def decode(self, data: bytes) -> dict[str, JsonValue]:
        return load_json_object(data)


class MappedCodec(Generic[T, U]):
    """A codec for `T` by way of another codec's `U`; for example a dataclass by way of its JSON object.

    `revive` is given decoded but unchecked data. Where that lacks a field or has a wrong type it may raise
    KeyError, TypeError or ValueError, each of which counts as undecodable.
    """

    def __init__(
        self, inner: Codec[U], *, name: str, flatten: Callable[[T], U], revive: Callable[[U], T]
    ) -> None:
        self._inner = inner
        self._name = f"{name}/{inner.name}"
        self._flatten = flatten
        self._revive = revive

    @property
    def name(self) -> str:
        return self._name

    def encode(self, value: T) -> bytes:
        return self._inner.encode(self._flatten(value))

    def decode(self, data: bytes) -> T:
        flat = self._inner.decode(data)
        try:
            return self._revive(flat)
        except (KeyError, TypeError, ValueError) as error:
            raise CodecError(self._name, f"{type(error).__name__}: {error}") from error


def dump_json(value: object) -> bytes:
    """Canonical JSON: sorted keys, no spaces, ASCII. Raises CodecError for what JSON can't hold."""
    _check_string_keys(value)
    try:
        return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(type(value).__name__, f"not JSON: {error}") from error


def load_json_object(data: bytes) -> dict[str, JsonValue]:
    """The JSON object in `data`. Raises CodecError for anything else, NaN and infinity included."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CodecError("JSON", f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CodecError("JSON", f"an object is expected, not {type(value).__name__}")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _check_string_keys(value: object) -> None:
    # json.dumps would turn the key 1 into "1", and the value would come back different. An explicit stack,
    # since depth is the encoder's to judge.
    stack: list[object] = [value]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if not isinstance(item, dict | list | tuple) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise CodecError(type(item).__name__, f"key {key!r} is not a string")
            stack.extend(item.values())
        else:
            stack.extend(item)
