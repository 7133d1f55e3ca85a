"""`stepwell doctor`: is everything there that work needs?"""

from __future__ import annotations

import click

from stepwell.cli.connection import maintained, run_async
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import chosen, on_database
from stepwell.cli.printing import echo_json, plain
from stepwell.config import Settings
from stepwell.operator.errors import Exit
from stepwell.operator.findings import DoctorFinding

_COLOURS = {"good": "green", "look": "yellow", "bad": "red"}


@click.command()
@json_option
@on_database
def doctor(*, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> int:
    """Look at the database and the work in it. Exit code 1 if something is bad."""
    found = chosen(dsn, schema, home)
    findings = run_async(examine(found))
    if as_json:
        echo_json({"findings": [_plainly(each) for each in findings]})
    else:
        for each in findings:
            click.echo(
                f"{click.style(f'{each.verdict:<4}', fg=_COLOURS[each.verdict])}  {each.subject:<13} {plain(each.text)}"
            )
    return Exit.FAILED if any(each.verdict == "bad" for each in findings) else Exit.DONE


async def examine(found: Settings) -> list[DoctorFinding]:
    async with maintained(found) as maintenance:
        return await maintenance.doctor()


def _plainly(finding: DoctorFinding) -> dict[str, str]:
    return {"subject": finding.subject, "verdict": finding.verdict, "says": finding.text}
