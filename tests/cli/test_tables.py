from __future__ import annotations

from stepwell.cli.tables import fitted

NATURAL = {"run": 36, "name": 30, "error": 60, "queue": 8}


def test_columns_are_as_wide_as_they_need_where_there_is_room():
    assert fitted(NATURAL, ["queue"], 200) == NATURAL


def test_the_widest_are_cut_first_and_the_first_never():
    assert fitted(NATURAL, ["queue"], 100) == {"run": 36, "name": 25, "error": 25, "queue": 8}


def test_what_still_has_no_room_is_left_out_and_the_others_have_it():
    assert fitted(NATURAL, ["queue", "error"], 70) == {"run": 36, "name": 15, "error": 15}
    assert fitted(NATURAL, ["queue", "error"], 60) == {"run": 36, "name": 22}
    assert fitted(NATURAL, ["queue", "error", "name"], 10) == {"run": 36}
