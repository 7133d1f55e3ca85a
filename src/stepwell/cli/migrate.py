"""`stepwell migrate`: the schema brought forward, or the SQL that would."""

from __future__ import annotations

import click

from stepwell.cli.connection import is_missing, maintained, run_async
from stepwell.cli.exits import DatabaseAway, say
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import chosen, on_database
from stepwell.cli.printing import echo_json
from stepwell.config import Settings
from stepwell.operator.maintenance import latest_version, script


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the SQL that is missing, for psql; change nothing.")
@click.option("--all", "everything", is_flag=True, help="With --print: all of it, without asking the database.")
@json_option
@on_database
def migrate(
    *, only_print: bool, everything: bool, as_json: bool, dsn: str | None, schema: str | None, home: str | None
) -> None:
    """Bring the database's schema to this version. Safe to run at any time, by any number at once."""
    found = chosen(dsn, schema, home)
    if only_print:
        click.echo(_script(found, everything=everything), nl=False)
        return
    if everything:
        raise click.UsageError("--all goes with --print")
    applied = run_async(_apply(found))
    latest = latest_version(found.schema)
    if as_json:
        echo_json({"schema": found.schema, "version": latest, "applied": applied})
        return
    for each in applied:
        click.echo(f"applied {each.replace('_', ' ', 1)}")
    if not applied:
        click.echo(f"already current (version {latest})")


async def _apply(found: Settings) -> list[str]:
    async with maintained(found) as maintenance:
        return await maintenance.migrate()


def _script(found: Settings, *, everything: bool) -> str:
    """The SQL that is missing; nothing but SQL may reach stdout, which goes to psql."""
    current = 0 if everything else _version(found)
    if current == latest_version(found.schema):
        say(f"already current (version {current})")
        return ""
    return script(found.schema, after=current)


def _version(found: Settings) -> int:
    if is_missing(found):
        say(f"no database in {found.home} yet: printing all of it")
        return 0
    try:
        return run_async(_ask_version(found))
    except DatabaseAway as error:
        say(f"{error}\nPrinting all of it.")
        return 0


async def _ask_version(found: Settings) -> int:
    async with maintained(found) as maintenance:
        return (await maintenance.schema()).version
