"""Normalize JSON as jsonb does, before it is stored.

A workflow receives a result when it arrives, and again in every replay, then read from a table. If the two differed,
even in the order of keys, the replay could take another path.
"""

from __future__ import annotations

from typing import Any

import msgspec

_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


def as_stored(data: bytes) -> bytes:
    """Order the keys of every object as jsonb does, and replace negative zeros."""
    if b"{" not in data and b"-0.0" not in data:
        return data
    return _write(_arranged(_read(data)))


def _arranged(value: Any) -> Any:
    if type(value) is dict:
        return {key: _arranged(value[key]) for key in sorted(value, key=_place)}
    if type(value) is list:
        return [_arranged(each) for each in value]
    return 0.0 if type(value) is float and value == 0 else value


def _place(key: str) -> tuple[int, bytes]:
    """Return the sort key of an object's key: by length, then by bytes."""
    encoded = key.encode()
    return len(encoded), encoded
