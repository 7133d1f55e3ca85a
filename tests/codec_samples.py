"""Types and values the codec is tried with."""

import enum
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Generic, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic

from stepwell.codec import Signature

T = TypeVar("T")
UserId = NewType("UserId", int)
SOME_UUID = UUID("12345678-1234-5678-1234-567812345678")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Kind(enum.StrEnum):
    A = "a"


class Mixed(enum.Enum):
    ONE = 1
    PAIR = (1, 2)


@dataclass
class Line:
    sku: str
    price: float | None = None


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    at: datetime
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass
class GiftLine(Line):
    note: str = "hello"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int


@dataclass(eq=False)
class Incomparable:
    x: float | None


@dataclass(eq=False)
class Entity:
    id: int
    weight: float | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and other.id == self.id

    __hash__ = None


@dataclass(eq=False)
class Person(Entity):
    name: str = "x"


@dataclass
class Note:
    text: str
    score: float | None = field(default=None, compare=False)


@dataclass
class Box(Generic[T]):
    inside: T


@dataclass
class Event:
    when: datetime | str
    next: "Event | None" = None
    doubled: int = field(init=False, default=0)


class Pair(NamedTuple):
    left: int
    right: date


class Options(TypedDict):
    name: str
    on: NotRequired[date]


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Apple(msgspec.Struct):
    size: int


class Pear(msgspec.Struct):
    size: int


class Later(TypedDict):
    at: date | str
    on: date | str


class Card(pydantic.BaseModel):
    number: str
    until: date
    limit: float | None = None
    holder: str = pydantic.Field("me", alias="theHolder")


class GoldCard(Card):
    model_config = pydantic.ConfigDict(strict=True)
    perks: set[str] = set()


def signature(annotation: Any) -> Signature:
    def fn(value, /): ...

    fn.__annotations__ = {"value": annotation, "return": annotation}
    return Signature(fn, name="shop.charge")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value
