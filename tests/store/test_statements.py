from __future__ import annotations

from typing import Any

import pytest

from stepwell import App, InvalidSetting
from stepwell.store.pool import Transaction
from stepwell.store.statements import Statement, checked_schema, in_schema, load, parse

HOSTILE = [
    "", " ", "Stepwell", "1st", "a-b", "a b", "a.b", "a;drop schema public", 'a"b', "a'b", "a\n", "a\x00", "ä",
    "a" * 41, "pg_catalog", "pg_mine", "information_schema", "$user", "--", "a/**/", "%s", "{0}",
]  # fmt: skip


def one(text: str) -> Statement:
    (statement,) = parse(f"-- name: it\n{text}")
    return statement


def test_parameters_are_numbered_in_the_order_they_are_first_used() -> None:
    statement = one("select :b, :a, :b where x = :a_2;")
    assert statement.sql == "select $1, $2, $1 where x = $3"
    assert statement.params == ("b", "a", "a_2")


@pytest.mark.parametrize(
    "text",
    [
        "select x::text, y::uuid[]",
        "select ':not a parameter', 'it''s :this neither'",
        "select 1 -- nor :this, it's a comment",
        "select 'a -- b', x[1:2], a.b::int::text",
        "select '::' || 'x'",
    ],
)
def test_casts_texts_comments_and_slices_hold_no_parameters(text: str) -> None:
    assert one(text).params == ()
    assert one(text).sql == text


def test_a_parameter_is_found_right_before_and_after_a_cast_a_text_or_a_comment() -> None:
    statement = one("select :a::text || 'b' || :c -- it's :d\n || :e")
    assert statement.params == ("a", "c", "e")
    assert statement.sql == "select $1::text || 'b' || $2 -- it's :d\n || $3"


def test_values_are_bound_by_name_in_the_statements_order() -> None:
    assert one("select :b, :a").bind({"a": 1, "b": 2}) == [2, 1]


@pytest.mark.parametrize("values", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}])
def test_a_missing_surplus_or_misspelt_value_is_told_with_what_is_taken(values: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="it takes b, a; got"):
        one("select :b, :a").bind(values)


def test_a_statement_ends_where_the_next_begins_and_keeps_its_moves() -> None:
    first, second = parse(
        "-- a head\n-- name: one\n-- moves: pending -> running\nselect 1;\n\n-- name: two\nselect 2;\n"
    )
    assert (first.name, first.moves, second.name, second.moves) == ("one", "pending -> running", "two", None)
    assert first.sql.endswith("select 1")
    assert second.sql == "select 2"


def test_only_the_schemas_own_name_is_replaced() -> None:
    text = "select stepwell.now(), 'stepwell.runs', mystepwell.x, stepwell_x.y from stepwell.runs"
    assert in_schema(text, "other") == "select other.now(), 'other.runs', mystepwell.x, stepwell_x.y from other.runs"


def test_every_statement_loads_for_another_schema_and_names_no_other() -> None:
    ours, theirs = load("stepwell"), load("other_1")
    assert ours.keys() == theirs.keys()
    assert all("stepwell." not in statement.sql for statement in theirs.values())
    assert all(ours[name].params == theirs[name].params for name in ours)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_name_is_refused_before_any_sql_is_made_of_it(name: str) -> None:
    for make in (checked_schema, load, lambda schema: in_schema("select stepwell.now()", schema)):
        with pytest.raises(InvalidSetting, match="schema"):
            make(name)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name])
def test_an_app_refuses_a_hostile_schema_name_where_it_is_made(name: str) -> None:
    with pytest.raises(InvalidSetting, match="schema"):
        App(schema=name)


async def test_no_word_that_postgres_reserves_is_taken_for_a_schema(tx: Transaction) -> None:
    reserved = await tx.connection.fetch("select word from pg_get_keywords() where catcode in ('R', 'T')")
    assert len(reserved) > 90
    for row in reserved:
        with pytest.raises(InvalidSetting, match="reserved by Postgres"):
            checked_schema(row["word"])


@pytest.mark.parametrize("name", sorted(load("stepwell")))
async def test_every_statement_is_understood_by_the_database(tx: Transaction, name: str) -> None:
    statement = load("stepwell")[name]
    prepared = await tx.connection.prepare(statement.sql)  # type: ignore[attr-defined]
    assert len(prepared.get_parameters()) == len(statement.params)
