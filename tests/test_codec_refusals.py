"""What cannot be stored is refused at the call, or at registration, with the parameter named."""

import io
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from stepwell.codec import Signature
from stepwell.model.errors import InvalidSetting, NotEncodable, UsageError
from tests.codec_samples import (
    SOME_UUID,
    Box,
    Card,
    Entity,
    Event,
    GiftLine,
    GoldCard,
    Incomparable,
    Line,
    Note,
    Options,
    Order,
    Person,
    Point,
    nested,
    signature,
)


def circular() -> list[Any]:
    loop: list[Any] = []
    loop.append({"again": loop})
    return loop


ORDER = Order(SOME_UUID, [Line("x"), Line("y", math.nan)], datetime(2026, 1, 1))
NAN_META = Order(SOME_UUID, [], datetime(2026, 1, 1), {"a": Point(math.inf, 1)})
GIFT = Order(SOME_UUID, [GiftLine("x")], datetime(2026, 1, 1))
REFUSED: list[tuple[Any, Any, str, str]] = [
    (float, math.nan, "", "nan"),
    (float | None, math.inf, "", "inf"),
    (Any, {"a": [1, -math.inf]}, "['a'][1]", "inf"),
    (Order, ORDER, ".lines[1].price", "nan"),
    (Order, NAN_META, ".meta['a'].x", "inf"),
    (Incomparable, Incomparable(math.nan), ".x", "nan"),
    (Card, Card(number="1", until=date(2026, 1, 1), limit=math.nan), ".limit", "nan"),
    (Entity, Entity(1, math.nan), ".weight", "nan"),
    (list[Entity], [Person(1)], "[0]", "expected Entity, got Person"),
    (Box[Entity | datetime | str], Box(Person(1)), ".inside", "expected Entity, got Person"),
    (Note, Note("x", math.nan), ".score", "nan"),
    (Any, [Note("x", math.nan)], "[0].score", "nan"),
    (dict[float, int], {math.nan: 1}, "", "nan"),
    (str, "a\0b", "", "u0000"),
    (Any, {"a\0b": 1}, "", "u0000"),
    (list[str], ["ok", "\\\0"], "[1]", "u0000"),
    (str, "\ud800", "", "surrogate"),
    (Any, {"\udfff": 1}, "", "surrogate"),
    (Any, circular(), "[0]['again']", "contains itself"),
    (Any, nested(201), "", "200 levels"),
    (Any, nested(5000), "", "200 levels"),
    (Any, {1: 2, "1": 3}, "", "the same in JSON"),
    (Any, {(1, 2): 3}, "", "key"),
    (Any, 10**4300, "", "4300 digits"),
    (Any, 1j, "", "complex"),
    (Any, [lambda: 1], "[0]", "function"),
    (Any, (i for i in [1]), "", "generator"),
    (Any, io.StringIO(), "", "open file"),
    (Any, int, "", "class"),
    (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=30))), "", "whole minutes"),
    (Order, "text", "", "Expected `object`, got `str`"),
    (Order, {"id": SOME_UUID, "lines": [], "at": datetime(2026, 1, 1)}, "", "expected Order, got dict"),
    (list[Line], [Line("x"), Line(3)], "[1].sku", "Expected `str`, got `int`"),
    (Line, GiftLine("x"), "", "expected Line, got GiftLine"),
    (Order, GIFT, ".lines[0]", "expected Line, got GiftLine"),
    (Point | Line, GiftLine("x"), "", "expected Line, got GiftLine"),
    (Card, GoldCard(number="1", until=date(2026, 1, 1)), "", "expected Card, got GoldCard"),
    (str, SOME_UUID, "", "expected str, got UUID"),
    (str, b"ab", "", "expected str, got bytes"),
    (datetime, "2026-01-01T00:00:00", "", "expected datetime, got str"),
    (float, 2**53 + 1, "", "expected float, got int"),
    (int, True, "", "Expected `int`, got `bool`"),
    (set[int], [1, 1], "", "2 items would come back as 1"),
    (Options, {"name": "a", "extra": 1}, "", "'extra' would be lost"),
    (Annotated[int, msgspec.Meta(gt=1)], 1, "", ">= 2"),
    (datetime | str, 3, "", "expected datetime or str, got int"),
    (Event, Event("x", Event(4)), ".next.when", "expected datetime or str, got int"),
    (list[datetime | str], ["x", math.nan], "[1]", "nan"),
]


@pytest.mark.parametrize(("annotation", "value", "path", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_stored_is_refused_at_the_call_with_its_place(annotation, value, path, reason):
    sig = signature(annotation)
    at = f" (at {path}" if path else ""
    with pytest.raises(NotEncodable) as refused:
        sig.encode_input((value,), {})
    assert refused.value.where.startswith(f"parameter 'value' of shop.charge{at}")
    assert reason in refused.value.reason
    with pytest.raises(NotEncodable) as refused:
        sig.encode_result(value)
    assert refused.value.where.startswith(f"the result of shop.charge{at}")


class Twin:
    @dataclass
    class Point:
        z: int


@dataclass
class HoldsFile:
    file: io.TextIOWrapper


UNSTORABLE = [
    (io.TextIOWrapper, "TextIOWrapper"),
    (Callable[[int], int], "Callable"),
    (socket.socket, "socket"),
    (complex, "complex"),
    (list[HoldsFile], "field 'file' of HoldsFile"),
    (dict[tuple[int, int], str], "key"),
    (dict[Path, datetime | str], "key"),
    (Point | Twin.Point, "two types of the union are both Point"),
    (list[int] | list[str], "two types of the union are both list"),
]


@pytest.mark.parametrize(("annotation", "reason"), UNSTORABLE)
def test_an_annotation_that_can_never_work_is_refused_at_registration(annotation, reason):
    def fn(good: int, bad): ...

    fn.__annotations__["bad"] = annotation
    with pytest.raises(InvalidSetting) as refused:
        Signature(fn, name="shop.charge")
    assert refused.value.setting == "parameter 'bad' of shop.charge"
    assert reason in refused.value.reason


def test_an_annotation_that_cannot_be_resolved_is_refused_with_the_parameter():
    def fn(good: "int", bad: "Nowhere"): ...  # noqa: F821

    with pytest.raises(UsageError, match=r"parameter 'bad' of shop\.charge = 'Nowhere': .*resolved"):
        Signature(fn, name="shop.charge")
