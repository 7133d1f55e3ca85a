"""Pins: a run that only code of one version may run is claimed by another name, which only such workers know.

    shop.checkout                  any worker with this workflow
    shop.checkout@1f2e3d4c5b6a     workers that have it in this version

So whoever claims asks nothing more than before. Only `runs.name` and its like hold such a name; whatever is shown has
the plain one.
"""

from __future__ import annotations

import re

_PINNED = re.compile(r"(.+)@([0-9a-f]{12})", re.DOTALL)


def claim_name(name: str, version: str | None) -> str:
    """What a run is claimed by."""
    return name if version is None else f"{name}@{version}"


def plain_name(claimed_by: str) -> str:
    """What it is called."""
    found = _PINNED.fullmatch(claimed_by)
    return claimed_by if found is None else found[1]


def pin_of(claimed_by: str) -> str | None:
    """The version that it is pinned to, if it is."""
    found = _PINNED.fullmatch(claimed_by)
    return None if found is None else found[2]
