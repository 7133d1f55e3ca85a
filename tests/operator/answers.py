"""Answers of the operator, as other doors send them."""

from __future__ import annotations

from typing import Any

import msgspec


def as_json(answer: Any) -> Any:
    """The answer as an HTTP API would send it: plain JSON, without a hook for what JSON does not know."""
    return msgspec.json.decode(msgspec.json.encode(answer))
