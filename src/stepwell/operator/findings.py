"""The findings of a doctor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["good", "look", "bad"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A thing that was looked at."""

    subject: str
    verdict: Verdict
    text: str
    """The sentence for people."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The facts on which the verdict rests, for programs."""
