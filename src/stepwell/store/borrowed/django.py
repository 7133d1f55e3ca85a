"""Django: `django.db.connection`, or one of `connections`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepwell.model.errors import InvalidSetting, WrongUse
from stepwell.store.borrowed.base import Borrowed, by_name, numbered


class DjangoConnection(Borrowed):
    place = "%(p{})s"
    blocks = True

    async def require_transaction(self) -> None:
        if self._connection.vendor != "postgresql":
            raise InvalidSetting("tx", self._connection.vendor, "must be a connection to the app's Postgres database")
        if _on_event_loop() and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
            raise WrongUse(
                "Django's connections cannot be used on an event loop: call a function through `sync_to_async`, and in "
                "it use `with transaction.atomic():` and `.options(tx=connection).sync.start(…)`"
            )
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise WrongUse("tx= is a connection with no transaction open: use `with transaction.atomic():`")

    async def driver_connection(self) -> object | None:
        connection: object | None = self._connection.connection
        return connection

    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, numbered(texts))
            return by_name(cursor.description, cursor.fetchall() if cursor.description else ())


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
