from __future__ import annotations

import click
import pytest

from stepwell import App, Retry


async def states(client: App, **which: object) -> list[str]:
    page = await client.runs(limit=1000, **which)  # type: ignore[arg-type]
    return sorted(info.state.value for info in page.items)


async def start(client: App, count: int, **options: object) -> list[object]:
    definition = client.definition("shop.add").options(**options)
    return [run.id for run in await definition.start_many([(n,) for n in range(count)])]


async def test_runs_are_cancelled_by_what_they_have_in_common(stepwell, client):
    await start(client, 3, queue="mail")
    await start(client, 2, queue="mail", delay="1h")
    await start(client, 2, queue="sums")
    said = await stepwell("cancel", "--queue", "mail", "--state", "pending", "--yes")
    assert (said.code, said.out) == (0, "3 cancelled\n")
    assert await states(client, queue="mail") == ["cancelled"] * 3 + ["scheduled"] * 2
    assert await states(client, queue="sums") == ["pending"] * 2


async def test_without_a_terminal_nothing_is_done_unless_told_to(stepwell, client):
    await start(client, 3, queue="mail")
    said = await stepwell("cancel", "--queue", "mail")
    assert said.code == 2
    assert "This will cancel 3 runs: queue mail." in said.err
    assert "add --yes" in said.err
    assert await states(client) == ["pending"] * 3


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, "cancelled"), ("n\n", 130, "pending")])
async def test_at_a_terminal_the_count_is_shown_and_the_question_asked(
    stepwell, client, monkeypatch, answer, code, left
):
    asked = []

    def confirm(text, **_options):
        asked.append(text)
        if answer == "n\n":
            raise click.Abort

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", confirm)
    await start(client, 2, queue="mail")
    said = await stepwell("cancel", "--queue", "mail", "--state", "pending", "--state", "scheduled")
    assert said.code == code
    assert asked == ["This will cancel 2 runs: queue mail, state pending or scheduled. Go on?"]
    assert await states(client) == [left] * 2


async def test_tags_and_times_choose_too(stepwell, client):
    await start(client, 2, tags={"tenant": "acme", "n": 3})
    await start(client, 2, tags={"tenant": "else"})
    assert (await stepwell("cancel", "--tag", "tenant=acme", "--tag", "n=3", "--json", "--yes")).json == {
        "matched": 2, "done": 2,
    }  # fmt: skip
    assert (await stepwell("cancel", "--since", "2030-01-01T00:00", "--json", "--yes")).json["matched"] == 0
    assert (await stepwell("cancel", "--since", "5m", "--json", "--yes")).json == {"matched": 2, "done": 2}


async def test_failed_runs_are_started_again_by_what_they_have_in_common(stepwell, app):
    async def boil(n: int) -> None:
        raise ValueError("no water") if n else KeyError("no pot")

    task = app.task(name="boil", retry=Retry(attempts=1))(boil)
    runs = await task.start_many([(n,) for n in range(3)])
    other = await task.start(1)
    async with app.worker():
        for run in [*runs, other]:
            with pytest.raises(Exception, match="boil"):
                await run.result(10)
    await other.retry()
    said = await stepwell("retry", "--error", "ValueError", "--json", "--yes")
    assert said.json == {"matched": 3, "done": 3}
    again = (await app.runs(state="pending")).items
    assert sorted(str(info.retry_of) for info in again) == sorted(str(run.id) for run in [*runs[1:], other, other])
    assert (await stepwell("retry", "--state", "completed", "--json", "--yes")).json["matched"] == 0


async def test_many_are_done_in_batches(stepwell, client, monkeypatch):
    monkeypatch.setattr("stepwell.operator.bulk.CHUNK", 20)
    monkeypatch.setattr("stepwell.operator.bulk.PAGE", 30)
    await start(client, 100)
    assert (await stepwell("cancel", "--name", "shop.add", "--yes")).out == "100 cancelled\n"
    assert (await stepwell("retry", "--name", "shop.add", "--state", "cancelled", "--yes")).out == "100 started again\n"
    assert await states(client) == ["cancelled"] * 100 + ["pending"] * 100


async def test_what_moved_on_meanwhile_is_counted(stepwell, client, monkeypatch):
    ids = await start(client, 3)
    await client.run(ids[0]).cancel()

    async def gathered_before(*_arguments, **_options):
        return ids

    monkeypatch.setattr("stepwell.operator.bulk.BulkVerbs.matching", gathered_before)
    said = await stepwell("cancel", "--name", "shop.add", "--yes")
    assert said.out == "2 cancelled; 1 had moved on meanwhile\n"


async def test_a_run_that_is_cancelled_in_bulk_ends_where_it_waits(stepwell, client):
    (run_id,) = await start(client, 1)
    waiting = client.run(run_id).result(20)
    assert (await stepwell("cancel", "--name", "shop.add", "--yes")).code == 0
    with pytest.raises(Exception, match="was cancelled"):
        await waiting


@pytest.mark.parametrize(
    "arguments",
    [
        ("cancel",),
        ("retry",),
        ("cancel", "key", "--queue", "mail"),
        ("cancel", "--state", "completed"),
        ("retry", "--state", "pending"),
        ("cancel", "--tag", "tenant"),
        ("cancel", "--since", "sometime"),
    ],
)
async def test_wrong_usage_touches_nothing(stepwell, client, arguments):
    await start(client, 1)
    assert (await stepwell(*arguments, "--yes")).code == 2
    assert await states(client) == ["pending"]
