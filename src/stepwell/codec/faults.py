"""Find the reason why a value cannot be stored, and the path to it.

Encoding and decoding detect an error quickly. Only then is the value searched for the cause.
"""

from __future__ import annotations

import enum
import io
import math
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec

from stepwell.codec.types import ARRAYS, Misfit, fields_of

LIMIT = 2 * 1024 * 1024
"""The most bytes of one stored value."""

DEPTH = 200
"""The most levels of nested arrays and objects: well below the limits of jsonb and of Python's stack."""

# Python refuses to parse an integer of more digits from text.
_BITS = (10**4300).bit_length() - 1
_LEAVES = (bytes, bytearray, memoryview, date, timedelta, UUID, Decimal, PurePath, bool, type(None))
_SCALARS = (str, int, float, bool, type(None))
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
# The pattern begins with a literal, so that the search can skip to it; a lookbehind checks the digit before.
_EXPONENT = re.compile(rb"e(?<=[0-9]e)[0-9]")
_TEXT_OR_NUMBER = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|(-?[0-9.]+e[0-9]+)')
_STRANGERS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (io.IOBase, "an open file is not data: give its path or its content"),
    (types.GeneratorType, "a generator is not data: make it a list"),
    ((types.CoroutineType, types.AsyncGeneratorType), "a coroutine is not data: await it first"),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType), "a function is not data"),
    (type, "a class is not data"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why a value cannot be stored, and the path to the offending part."""

    reason: str
    path: str = ""


def check_bytes(data: bytes) -> None:
    """Refuse data that jsonb would refuse. This is cheap, because most data passes the first test of each rule."""
    if len(data) > LIMIT:
        raise Misfit(f"it takes {len(data):,} bytes and the limit is {LIMIT:,}; store it elsewhere, pass a reference")
    # An escaped backslash before `u0000` is the text "\u0000", not a NUL.
    if b"\\u0000" in data and b"\\u0000" in data.replace(b"\\\\", b""):
        raise Misfit("a text contains \\u0000")
    if data.count(b"[") + data.count(b"{") > DEPTH and _is_too_deep(data):
        raise Misfit(f"it is nested more than {DEPTH} levels deep")


def with_plain_floats(data: bytes) -> bytes:
    """Write 1e22 as 10000000000000000000000.0: jsonb drops the exponent, and would return an integer."""
    if _EXPONENT.search(data) is None:
        return data
    return _TEXT_OR_NUMBER.sub(_plain_float, data)


def _plain_float(found: re.Match[bytes]) -> bytes:
    return found[0] if found[1] is None else b"%d.0" % int(Decimal(found[1].decode()))


def _is_too_deep(data: bytes) -> bool:
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_texts = b"".join(unescaped.split(b'"')[::2])
    brackets = outside_texts.translate(_BRACKETS, _NOT_BRACKETS)
    for _ in range(DEPTH):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def find_fault(value: Any) -> Fault | None:
    """Return the first part of a value that JSON or jsonb cannot store, regardless of its annotation."""
    return _fault(value, "", ())


def _fault(value: Any, path: str, above: tuple[int, ...]) -> Fault | None:
    if reason := _scalar_fault(value):
        return Fault(reason, path)
    if isinstance(value, enum.Enum):
        return _fault(value.value, path, above)
    if isinstance(value, (str, int, float, time, *_LEAVES)):
        return None
    if id(value) in above:
        return Fault("it contains itself", path)
    if len(above) >= DEPTH:
        return Fault(f"it is nested more than {DEPTH} levels deep", path[:60] + "…")
    if isinstance(value, dict) and (fault := _keys_fault(value, path)):
        return fault
    children = _children(value)
    if children is None:
        return Fault(_strangeness(value), path)
    for step, child in children:
        if fault := _fault(child, path + step, (*above, id(value))):
            return fault
    return None


def _children(value: Any) -> Iterator[tuple[str, Any]] | None:
    if isinstance(value, dict):
        return ((f"[{key!r}]", item) for key, item in value.items())
    if (fields := fields_of(value)) is not None:
        return ((f".{name}", item) for name, item in fields.items())
    if isinstance(value, ARRAYS):
        return ((f"[{i}]", item) for i, item in enumerate(value))
    return None


def _scalar_fault(value: Any) -> str | None:
    if isinstance(value, (str, PurePath)):
        return _text_fault(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not JSON"
    if isinstance(value, int) and value.bit_length() > _BITS:
        return "an integer of more than 4300 digits"
    if isinstance(value, (datetime, time)) and (offset := value.utcoffset()) and offset % timedelta(minutes=1):
        return f"its offset from UTC, {offset}, is not in whole minutes"
    return None


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return "a text contains \\u0000, which Postgres cannot hold"
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        return "a text contains a lone surrogate, which is not Unicode"
    return None


def _keys_fault(value: dict[Any, Any], path: str) -> Fault | None:
    written: dict[bytes, Any] = {}
    for key in value:
        if reason := _scalar_fault(key):
            return Fault(f"the key {key!r}: {reason}", path)
        try:
            text = msgspec.json.encode({key: None})
        except (TypeError, ValueError):
            return Fault(f"a {type(key).__name__} cannot be the key of a JSON object", path)
        if text in written:
            return Fault(f"the keys {written[text]!r} and {key!r} are the same in JSON", path)
        written[text] = key
    return None


def _strangeness(value: Any) -> str:
    for kinds, reason in _STRANGERS:
        if isinstance(value, kinds):
            return reason
    return f"{type(value).__module__}.{type(value).__qualname__} is not a type that can be stored as JSON"


def find_change(given: Any, read: Any, *, loose: bool, path: str = "") -> Fault | None:
    """Return the first difference between the given value and the value read back.

    A list may be given for a tuple or a set, and vice versa: the annotation decides. With `loose`, the annotation
    contains an Any, for which plain JSON may be read back in place of a date or a dataclass.
    """
    if is_same(given, read) and not _has_parts(given):
        return None
    if type(given) is type(read) or (isinstance(given, ARRAYS) and isinstance(read, ARRAYS)):
        return _change_within(given, read, loose, path)
    if isinstance(given, dict) and isinstance(read, dict):
        return _change_within(dict(given), dict(read), loose, path)
    if loose and isinstance(read, (*_SCALARS, list, dict)) and type(given) not in (*_SCALARS, list, dict):
        return None
    return Fault(f"expected {type(read).__name__}, got {type(given).__name__}", path)


def _change_within(given: Any, read: Any, loose: bool, path: str) -> Fault | None:
    before, after = dict(_children(given) or ()), dict(_children(read) or ())
    if not _has_parts(given) and not _has_parts(read):
        return Fault(f"{given!r:.80} would come back as {read!r:.80}", path)
    if len(before) != len(after) or (isinstance(given, dict) and not loose and before.keys() != after.keys()):
        lost = [step.strip(".[]") for step in before if step not in after]
        named = isinstance(given, dict) and lost
        count = f"{len(before)} items would come back as {len(after)}"
        return Fault(f"{', '.join(lost)} would be lost" if named else count, path)
    # For an Any the key 1 is read back as "1", but at the same position, because JSON keeps the order of writing.
    others = after.values() if before.keys() != after.keys() else [after[step] for step in before]
    for (step, item), other in zip(before.items(), others, strict=True):
        if fault := find_change(item, other, loose=loose, path=path + step):
            return fault
    return None


def _has_parts(value: Any) -> bool:
    """Tell whether a value must be compared part by part: a user-defined `==` may ignore some parts."""
    return isinstance(value, (dict, list, tuple)) or fields_of(value) is not None


def is_same(given: Any, read: Any) -> bool:
    """Tell whether a value equals the value read back. Decimals and datetimes may also be equal as texts."""
    try:
        if given == read:
            return True
    except Exception:  # a signalling NaN, or an error of a user-defined `==`
        pass
    if isinstance(given, Decimal) and isinstance(read, Decimal):
        return str(given) == str(read)
    if isinstance(given, datetime) and isinstance(read, datetime):
        # Python never considers a time in a repeated hour equal to one of another time zone.
        return given.isoformat() == read.isoformat()
    return False
