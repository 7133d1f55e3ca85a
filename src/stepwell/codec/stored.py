"""Values as jsonb gives them back, before it has had them.

A workflow is told a result when it comes, and again in every replay, when it comes from a table. If the two were not
the same to the last key, it would go another way the second time.
"""

from __future__ import annotations

from typing import Any

import msgspec

_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


def as_stored(data: bytes) -> bytes:
    """The keys of every object in the order in which jsonb keeps them, and no negative zero."""
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
    """Shorter keys first, and then byte by byte."""
    encoded = key.encode()
    return len(encoded), encoded
