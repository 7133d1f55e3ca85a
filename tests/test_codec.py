"""What is stored comes back as it was given."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.codec import LIMIT, Signature, decode, encode, encode_call
from stepwell.model.errors import NotDecodable, NotEncodable
from tests.codec_samples import (
    SOME_UUID,
    Apple,
    Box,
    Card,
    Cat,
    Colour,
    Dog,
    Entity,
    Event,
    GoldCard,
    Incomparable,
    Kind,
    Later,
    Level,
    Line,
    Mixed,
    Note,
    Options,
    Order,
    Pair,
    Pear,
    Point,
    UserId,
    nested,
    signature,
)


def round_trip(annotation: Any, value: Any) -> Any:
    sig = signature(annotation)
    (back,), rest = sig.decode_input(sig.encode_input((value,), {}))
    assert not rest
    result = sig.decode_result(sig.encode_result(value))
    assert type(result) is type(back)
    return back


OSLO = ZoneInfo("Europe/Oslo")
VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, -3),
    (int, 2**64),
    (int, -(10**4000)),
    (float, 0.1),
    (float, 1e300),
    (float, 5e-324),
    (str, 'a "quoted" \\u0000 \\ 😀 {[[['),
    (bytes, b"\x00\xff"),
    (bytearray, bytearray(b"ab")),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset("ab")),
    (Sequence[int], [1]),
    (dict[str, int], {"": 1, "$is": 2}),
    (dict[int, str], {1: "a"}),
    (dict[UUID, int], {SOME_UUID: 1}),
    (dict[date, int], {date(2026, 1, 2): 1}),
    (dict[Colour, int], {Colour.RED: 1}),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 6)),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
    (date, date(2026, 1, 2)),
    (time, time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-2, microseconds=1)),
    (UUID, SOME_UUID),
    (Decimal, Decimal("1.10")),
    (Decimal, Decimal("1E+500")),
    (Colour, Colour.BLUE),
    (Level, Level.LOW),
    (Kind, Kind.A),
    (Mixed, Mixed.PAIR),
    (Literal["a", 1, None], "a"),
    (Point, Point(1, 2)),
    (Order, Order(SOME_UUID, [Line("x", 1.5), Line("y")], datetime(2026, 1, 1), {"a": [None, 1.5]})),
    (Box[Point], Box(Point(1, 2))),
    (Box[datetime | str], Box(datetime(2026, 1, 1))),
    (Box[list[Point | Line]], Box([Point(1, 2), Line("x")])),
    (Entity, Entity(1, 2.5)),
    (list[Note], [Note("x", 1.5)]),
    (Pair, Pair(1, date(2026, 1, 1))),
    (Options, {"name": "a", "on": date(2026, 1, 1)}),
    (Cat | Dog, Dog("rex")),
    (list[Cat | Dog], [Cat(9), Dog("rex")]),
    (Card, Card(number="1", until=date(2026, 1, 1), theHolder="you")),
    (GoldCard, GoldCard(number="1", until=date(2026, 1, 1), perks={"lounge"})),
    (dict[str, list[Card]], {"a": [Card(number="1", until=date(2026, 1, 1))]}),
    (Path, Path("/tmp/x")),
    (Annotated[int, msgspec.Meta(gt=1)], 2),
    (UserId, UserId(4)),
    (int | None, None),
    (Any, {"a": [1, 1.0, 1e22, None, True, "x"]}),
    (object, [1]),
]
UNIONS: list[tuple[Any, Any]] = [
    (datetime | str, datetime(2026, 1, 1)),
    (datetime | str, "2026-01-01T00:00:00"),
    (UUID | str | None, SOME_UUID),
    (UUID | str | None, str(SOME_UUID)),
    (UUID | str | None, None),
    (Decimal | float, Decimal("1.50")),
    (Decimal | float, 1.5),
    (int | float, 1e22),
    (int | float, 10**22),
    (bytes | str, b"abcd"),
    (bytes | str, "abcd"),
    (date | datetime, date(2026, 1, 1)),
    (date | datetime, datetime(2026, 1, 1)),
    (list[int] | tuple[int, int], (1, 2)),
    (list[int] | tuple[int, int], [1, 2]),
    (set[int] | list[int], {1}),
    (Point | Line, Point(1, 2)),
    (Point | Line | dict[str, int], {"x": 1, "y": 2}),
    (Card | Point | int, Card(number="1", until=date(2026, 1, 1))),
    (Card | Point | int, 7),
    (Card | GoldCard, GoldCard(number="1", until=date(2026, 1, 1))),
    (Path | str, Path("x")),
    (Path | str, "x"),
    (Mixed | Colour, Colour.RED),
    (Colour | str, "red"),
    (Colour | str, Colour.RED),
    (Literal["now"] | datetime, "now"),
    (dict[str, datetime | str], {"a": "b", "c": datetime(2026, 1, 1)}),
    (dict[int, Point | Line], {1: Line("x")}),
    (tuple[datetime | str, int], ("x", 1)),
    (list[datetime | str] | None, [datetime(2026, 1, 1), "x"]),
    (Later, {"at": date(2026, 1, 1), "on": "x"}),
    (Cat | Dog | date | str, Dog("rex")),
    (Apple | Pear, Pear(1)),
    (Event, Event("soon", Event(datetime(2026, 1, 1)))),
    (Annotated[date | str, "a note"], date(2026, 1, 1)),
    (set[date | str], {date(2026, 1, 1), "x"}),
]


def _in_any_order(part: object) -> str:
    """A test's name must not depend on how a set happens to be ordered: processes would disagree on it."""
    return "a set" if isinstance(part, set | frozenset) else str(part)[:40]


@pytest.mark.parametrize(("annotation", "value"), VALUES + UNIONS, ids=_in_any_order)
def test_a_value_comes_back_as_it_was_given(annotation, value):
    back = round_trip(annotation, value)
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value) or isinstance(value, (set, frozenset))


def test_an_instant_in_a_zone_comes_back_with_its_offset_also_in_the_hour_that_occurs_twice():
    value = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=OSLO)
    assert round_trip(datetime, value).isoformat() == value.isoformat()


def test_a_dataclass_without_equality_is_stored():
    assert round_trip(Incomparable, Incomparable(1.5)).x == 1.5


def test_an_integer_is_a_float_where_a_float_is_asked_for():
    assert round_trip(float, 3) == 3.0


def test_a_list_becomes_the_tuple_that_is_asked_for():
    assert round_trip(tuple[int, ...], [1, 2]) == (1, 2)


def test_without_an_annotation_plain_json_comes_back():
    given_value = [Point(1, 2), (date(2026, 1, 1), Path("x")), {1: Card(number="1", until=date(2026, 1, 1))}]
    back = decode(encode(given_value, where="it"))
    assert back[:2] == [{"x": 1, "y": 2}, ["2026-01-01", "x"]]
    assert back[2]["1"]["until"] == "2026-01-01"


def test_a_subclass_of_a_plain_type_is_stored_as_the_plain_type():
    class Text(str):
        pass

    assert round_trip(str, Text("a")) == "a"


def greet(to: str, n: int = 1, *, loud: bool = False) -> str: ...


def gather(first: int, /, *rest: date, key: str = "k", **more: datetime | str) -> None: ...


GREET = Signature(greet, name="greet")
GATHER = Signature(gather, name="gather")


def test_what_the_call_leaves_out_is_left_to_the_function():
    assert GREET.encode_input(("x",), {}) == b'{"to":"x"}'
    assert GREET.decode_input(b'{"to":"x"}') == (("x",), {})
    assert GREET.decode_input(GREET.encode_input((), {"loud": True, "to": "x"})) == (("x",), {"loud": True})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("x", 1, True), {}, "too many positional arguments"),
        (("x",), {"to": "y"}, "multiple values for argument 'to'"),
        (("x",), {"size": 1}, "unexpected keyword argument 'size'"),
    ],
)
def test_a_wrong_call_raises_what_python_raises_with_the_name(args, kwargs, message):
    with pytest.raises(TypeError, match=rf"^greet\(\) .*{message}"):
        GREET.encode_input(args, kwargs)


def test_variadic_and_positional_only_parameters_are_stored_under_their_names():
    args, kwargs = (1, date(2026, 1, 1)), {"key": "q", "at": datetime(2026, 1, 1), "by": "me"}
    data = GATHER.encode_input(args, kwargs)
    assert decode(data)["rest"] == ["2026-01-01"]
    assert decode(data)["more"]["by"] == {"$is": "str", "value": "me"}
    assert GATHER.decode_input(data) == (args, kwargs)


def test_a_start_by_name_is_read_by_the_function_it_meets():
    assert encode_call((1, 2), {"to": "x"}) == b'{"*":[1,2],"to":"x"}'
    assert GREET.decode_input(encode_call(("x",), {"loud": True})) == (("x",), {"loud": True})
    assert GREET.decode_input(encode_call((), {"to": "x"})) == (("x",), {})
    call = encode_call((1, date(2026, 1, 1)), {"by": "me", "key": "q"})
    assert GATHER.decode_input(call) == ((1, date(2026, 1, 1)), {"key": "q", "by": "me"})


def test_a_start_by_name_refuses_what_cannot_be_stored():
    with pytest.raises(NotEncodable, match=r"parameter 'to' \(at \[0\]\)"):
        encode_call((1,), {"to": [math.nan]})
    with pytest.raises(NotEncodable, match="argument 2"):
        encode_call((1, "\0"), {})


@pytest.mark.parametrize(
    ("data", "where", "reason"),
    [
        (b"{}", "parameter 'to' of greet", "required"),
        (b'{"to":3}', "parameter 'to' of greet", "Expected `str`, got `int`"),
        (b'{"to":"x","a":1,"b":2}', "the input of greet", "'a', 'b'"),
        (b'{"*":["x"],"to":"y"}', "parameter 'to' of greet", "twice"),
        (b'{"*":["x",1,2]}', "the input of greet", "2 positional arguments, and 3"),
        (b'{"*":[5]}', "parameter 'to' of greet", "Expected `str`"),
        (b'{"*":5}', "the input of greet", "not a list"),
        (b"[]", "the input of greet", "Expected `object`"),
        (b"{", "the input of greet", "truncated"),
        (b'{"to":"x","n":' + b"1" * 10_000 + b"}", "parameter 'n' of greet", "out of range"),
    ],
)
def test_stored_input_that_does_not_fit_names_the_parameter(data, where, reason):
    with pytest.raises(NotDecodable) as refused:
        GREET.decode_input(data)
    assert refused.value.where == where
    assert reason in refused.value.reason


def test_names_for_variadic_keywords_do_not_mix_with_what_is_no_object():
    with pytest.raises(NotDecodable, match="parameter 'more' of gather"):
        GATHER.decode_input(b'{"first":1,"more":5,"by":"me"}')


def test_stored_data_nested_without_end_is_refused():
    with pytest.raises(NotDecodable, match="deep"):
        decode(b"[" * 1_000_000)


@pytest.mark.parametrize("name", ["os.system", "__class__", "builtins.eval", "Line ", "", None, 3, ["Line"]])
def test_a_type_named_in_data_is_only_ever_one_of_the_unions_own(name):
    with pytest.raises(NotDecodable, match="is not one of Point, Line"):
        signature(Point | Line).decode_input(msgspec.json.encode({"value": {"$is": name, "value": {"sku": "x"}}}))


def test_a_union_written_without_its_type_is_read_when_only_one_member_fits():
    sig = signature(datetime | str)
    assert sig.decode_input(b'{"value":"hello"}') == (("hello",), {})
    with pytest.raises(NotDecodable, match="could be datetime or str"):
        sig.decode_input(b'{"value":"2026-01-01T00:00:00"}')


def test_a_float_stays_a_float_when_jsonb_writes_out_its_exponent():
    assert encode([1e22, "1e22", -1.5e17], where="it") == (b'[10000000000000000000000.0,"1e22",-150000000000000000.0]')


@pytest.mark.parametrize("size", [LIMIT - 3, LIMIT - 2])
def test_a_value_up_to_the_limit_is_stored(size):
    assert len(encode("x" * size, where="it")) == size + 2


def test_a_value_beyond_the_limit_is_refused_with_both_numbers():
    with pytest.raises(NotEncodable, match=r"the input of greet .* 2,097,161 bytes .* 2,097,152"):
        GREET.encode_input(("x" * LIMIT,), {})


def test_the_depth_of_texts_does_not_count():
    value = [["[" * 500, '"]', "\\", '\\"' + "{" * 300]] * 300
    assert decode(encode(value, where="it")) == value
    assert decode(encode(nested(200), where="it")) == nested(200)


texts = st.text(st.characters(exclude_categories=())) | st.sampled_from(["\\u0000", "1e22", '"', "\\"])
scalars = st.none() | st.booleans() | st.integers() | st.integers(2**60, 2**80) | st.floats() | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)


def is_storable(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(is_storable(key) and is_storable(item) for key, item in value.items())
    return not isinstance(value, list) or all(map(is_storable, value))


@given(values)
def test_any_json_comes_back_unchanged_or_is_refused(value):
    if is_storable(value):
        back = decode(encode(value, where="it"))
        assert repr(back) == repr(value)
    else:
        with pytest.raises(NotEncodable):
            encode(value, where="it")
