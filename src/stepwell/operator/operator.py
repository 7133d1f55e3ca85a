"""`app.operator`: everything that is looked at and done from outside, as one typed object."""

from __future__ import annotations

from stepwell.definitions.definition import Definitions
from stepwell.model.counting import whole
from stepwell.operator.bulk import BulkVerbs
from stepwell.operator.findings import DoctorFinding
from stepwell.operator.maintenance import DatabaseFacts, Maintenance, SchemaVersions
from stepwell.operator.parts import Parts
from stepwell.operator.preflight import Checking, Hear, Preflight
from stepwell.operator.queues import QueueVerbs
from stepwell.operator.runs import RunVerbs
from stepwell.operator.statistics import Statistics
from stepwell.operator.workers import WorkerVerbs


class Operator:
    """The verbs of the command line, and of every other door. Each is async, and answers with plain values.

    It belongs to the event loop on which the app is open.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._maintenance = Maintenance(parts.database, parts.app.settings)
        self.runs = RunVerbs(parts)
        self.bulk = BulkVerbs(parts)
        self.queues = QueueVerbs(parts)
        self.workers = WorkerVerbs(parts)
        self.statistics = Statistics(parts)

    async def preflight(
        self, code: Definitions | None = None, *, limit: int | None = None, hear: Hear | None = None
    ) -> Preflight:
        """Replay the histories of all open workflows, or of the oldest `limit`, with code that is to be deployed: the
        app's own definitions if None. Nothing is run but the workflows' code, and nothing is written."""
        if limit is not None:
            whole("limit", limit)
        known = self._parts.app.definitions if code is None else code
        return await Checking(self._parts.client.outside, known, self._parts.code_of).look(limit, hear)

    async def doctor(self) -> list[DoctorFinding]:
        """Look at the database and at the work in it."""
        return await self._maintenance.doctor()

    async def database(self) -> DatabaseFacts:
        """The versions of server and schema, and the size of the database."""
        return await self._maintenance.facts()

    async def schema(self) -> SchemaVersions:
        """The version of the schema, and the migrations that are missing."""
        return await self._maintenance.schema()
