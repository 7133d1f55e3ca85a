"""Pins. A run that only one version of the code may run is claimed by a special name, which only such workers know.

    shop.checkout                  any worker with this workflow
    shop.checkout@1f2e3d4c5b6a     workers that have it in this version

Claiming by name therefore needs no extra check. Only `runs.name` and similar columns hold such a name; everything
that users see has the plain name.
"""

from __future__ import annotations

import re

_PINNED = re.compile(r"(.+)@([0-9a-f]{12})", re.DOTALL)


def claim_name(name: str, version: str | None) -> str:
    """Return the name by which a run is claimed."""
    return name if version is None else f"{name}@{version}"


def plain_name(claimed_by: str) -> str:
    """Return the name without its pin."""
    found = _PINNED.fullmatch(claimed_by)
    return claimed_by if found is None else found[1]


def pin_of(claimed_by: str) -> str | None:
    """Return the version to which the run is pinned, or None."""
    found = _PINNED.fullmatch(claimed_by)
    return None if found is None else found[2]
