"""`stepwell`: the commands, each loaded when it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

import click

COMMANDS = {
    "bench": "stepwell.cli.bench:bench",
    "cancel": "stepwell.cli.bulk:cancel",
    "check": "stepwell.cli.check:check",
    "dev": "stepwell.cli.dev:dev",
    "doctor": "stepwell.cli.doctor:doctor",
    "explain": "stepwell.cli.explain:explain",
    "fork": "stepwell.cli.steering:fork",
    "history": "stepwell.cli.history:history",
    "logs": "stepwell.cli.run_logs:logs",
    "migrate": "stepwell.cli.migrate:migrate",
    "pause": "stepwell.cli.steering:pause",
    "preflight": "stepwell.cli.preflight:preflight",
    "queue": "stepwell.cli.queues:queue",
    "queues": "stepwell.cli.queues:queues",
    "replay": "stepwell.cli.replay:replay",
    "resume": "stepwell.cli.steering:resume",
    "retry": "stepwell.cli.bulk:retry",
    "runs": "stepwell.cli.runs:runs",
    "show": "stepwell.cli.show:show",
    "signal": "stepwell.cli.steering:signal",
    "start": "stepwell.cli.start:start",
    "top": "stepwell.cli.top:top",
    "update": "stepwell.cli.steering:update",
    "worker": "stepwell.cli.worker:worker",
    "workers": "stepwell.cli.workers:workers",
}


STDERR = 2
"""The last of the three files that every process begins with."""


class Commands(click.Group):
    """Imports a command's module only when that command is wanted: `--version` should not load the rest."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stepwell", prog_name="stepwell", message="%(prog)s %(version)s")
@click.option("--app", "app_reference", metavar="APP", help="Your app, module:app: commands then use its database.")
def cli(app_reference: str | None) -> None:
    """Durable work on Postgres.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 database not reachable.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    try:
        code = cli.main(list(arguments), prog_name="stepwell", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:  # the reader has left, as `| head` does
        _print_no_more()
        return 0
    except Exception as error:
        from stepwell.cli.exits import told

        if isinstance(error, OSError):  # perhaps the disk is full to which it prints
            _print_no_more()
        return told(error)
    return code if isinstance(code, int) else 0


def _print_no_more() -> None:
    """Python would complain of what it cannot print when it flushes at the very end."""
    with suppress(OSError, ValueError):  # it has no file, where a test takes what is printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_what_is_closed() -> None:
    """Print to nothing, and read nothing, where the caller has closed a stream (`>&-`).

    Python has None in its place. The next file that is opened, or connection, would have its number.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(file, True)
    os.close(file)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as the process lasts


def main() -> None:
    _open_what_is_closed()
    sys.exit(run(sys.argv[1:]))
