"""Forms: how values of a type are written as JSON and read back.

msgspec reads and writes most types itself: `Native`. It refuses unions whose members it cannot distinguish, enums of
mixed values, and types that contain these. Such values are lowered to plain JSON before writing, and lifted after
reading. Types come from annotations only, never from the data.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, ClassVar, Protocol

import msgspec

ARRAYS = (list, tuple, set, frozenset)
_AT = re.compile(r"(?s)(?P<reason>.*) - at `\$(?P<path>.*)`\Z")


class Misfit(ValueError):
    """The value does not fit its type."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    @classmethod
    def of(cls, error: Exception) -> Misfit:
        """Convert an exception from reading or writing, with msgspec's path if it has one."""
        if isinstance(error, Misfit):
            return error
        if isinstance(error, RecursionError):
            return cls("it is nested too deeply")
        text = str(error) if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: {error}"
        found = _AT.fullmatch(text)
        return cls(found["reason"], found["path"]) if found else cls(text)


class Form(Protocol):
    """The JSON form of one type. msgspec decodes data as `wire`; `lift` converts the result."""

    @property
    def wire(self) -> Any: ...

    def lower(self, value: Any) -> Any: ...

    def lift(self, data: Any) -> Any: ...


class Lowered:
    """A form that is read as plain JSON, then lifted."""

    wire: ClassVar[Any] = Any


@dataclass(frozen=True, slots=True)
class Native:
    """A type that msgspec writes and reads by itself, or by the hooks below: paths and Pydantic models."""

    wire: Any

    def lower(self, value: Any) -> Any:
        return value

    def lift(self, data: Any) -> Any:
        try:
            return msgspec.convert(data, self.wire, str_keys=True, dec_hook=read_unknown)
        except msgspec.ValidationError as error:
            raise Misfit.of(error) from None


@dataclass(frozen=True)
class EnumByName(Lowered):
    """An enum whose values are neither all texts nor all integers; stored by member name."""

    cls: type[enum.Enum]

    def lower(self, value: Any) -> str:
        _expect(value, self.cls)
        return str(value.name)

    def lift(self, data: Any) -> enum.Enum:
        if not isinstance(data, str) or data not in self.cls.__members__:
            raise Misfit(f"{data!r} is not the name of a member of {self.cls.__name__}")
        return self.cls.__members__[data]


@dataclass(frozen=True)
class Array(Lowered):
    """list, tuple[x, ...], set, frozenset."""

    item: Form
    build: Callable[[Iterable[Any]], Any]

    def lower(self, value: Any) -> list[Any]:
        _expect(value, *ARRAYS)
        return [at(f"[{i}]", self.item.lower, item) for i, item in enumerate(value)]

    def lift(self, data: Any) -> Any:
        _expect(data, list)
        return self.build(at(f"[{i}]", self.item.lift, item) for i, item in enumerate(data))


@dataclass(frozen=True)
class FixedTuple(Lowered):
    """tuple[x, y]."""

    items: tuple[Form, ...]

    def lower(self, value: Any) -> list[Any]:
        return [at(f"[{i}]", form.lower, item) for i, form, item in self._pairs(value)]

    def lift(self, data: Any) -> tuple[Any, ...]:
        return tuple(at(f"[{i}]", form.lift, item) for i, form, item in self._pairs(data))

    def _pairs(self, value: Any) -> Iterator[tuple[int, Form, Any]]:
        _expect(value, list, tuple)
        if len(value) != len(self.items):
            raise Misfit(f"expected {len(self.items)} items, got {len(value)}")
        return ((i, form, item) for i, (form, item) in enumerate(zip(self.items, value, strict=True)))


@dataclass(frozen=True)
class Mapping(Lowered):
    """dict[key, x]."""

    key: Any
    item: Form

    def lower(self, value: Any) -> dict[Any, Any]:
        _expect(value, dict)
        return {key: at(f"[{key!r}]", self.item.lower, item) for key, item in value.items()}

    def lift(self, data: Any) -> dict[Any, Any]:
        _expect(data, dict)
        keys = Native(object_keyed_by(self.key)).lift(dict.fromkeys(data))
        items = [at(f"[{key!r}]", self.item.lift, item) for key, item in data.items()]
        return dict(zip(keys, items, strict=True))


@dataclass(eq=False)
class Record(Lowered):
    """A dataclass, struct, NamedTuple or TypedDict with a field that msgspec refuses."""

    cls: Any
    # Filled after the record is registered under its annotation, so that a type may contain itself.
    fields: dict[str, Form] = field(default_factory=dict)

    def lower(self, value: Any) -> dict[str, Any]:
        if typing.is_typeddict(self.cls):
            _expect(value, dict)
        elif type(value) is not self.cls:
            raise Misfit(f"expected {self.cls.__name__}, got {type(value).__name__}")
        given = fields_of(value)
        items = (value if given is None else given).items()
        return {name: at(f".{name}", self._form(name).lower, item) for name, item in items}

    def lift(self, data: Any) -> Any:
        _expect(data, dict)
        values = {name: at(f".{name}", form.lift, data[name]) for name, form in self.fields.items() if name in data}
        if typing.is_typeddict(self.cls):
            if missing := self.cls.__required_keys__ - values.keys():
                raise Misfit(f"{self.cls.__name__} lacks {', '.join(sorted(missing))}")
            return values
        try:
            return self._made(values)
        except (TypeError, ValueError) as error:
            raise Misfit(str(error)) from None

    def _made(self, values: dict[str, Any]) -> Any:
        later = {f.name for f in _dataclass_fields(self.cls) if not f.init}
        made = self.cls(**{name: item for name, item in values.items() if name not in later})
        for name in later & values.keys():
            # A frozen dataclass offers no other way to restore a field that its __init__ does not accept.
            object.__setattr__(made, name, values[name])
        return made

    def _form(self, name: str) -> Form:
        if name not in self.fields:
            raise Misfit(f"{self.cls.__name__} has no field {name!r}")
        return self.fields[name]


@dataclass(frozen=True)
class Member:
    """A member of a union: the class of its values, or for a Literal the values themselves."""

    cls: type
    form: Form
    values: tuple[Any, ...] = ()

    def is_exactly(self, value: Any) -> bool:
        if self.values:
            return any(type(value) is type(each) and value == each for each in self.values)
        return type(value) is self.cls

    def takes(self, value: Any) -> bool:
        if self.values or isinstance(value, bool):
            return False
        return isinstance(value, self.cls) or (self.cls is float and isinstance(value, int))


@dataclass(frozen=True)
class Choice(Lowered):
    """A union whose members msgspec cannot distinguish, stored with a name: `{"$is": "Order", "value": …}`."""

    members: dict[str, Member]
    optional: bool

    def lower(self, value: Any) -> Any:
        if value is None and self.optional:
            return None
        name = self._name_for(value)
        lowered = self.members[name].form.lower(value)
        return lowered if len(self.members) == 1 else {"$is": name, "value": lowered}

    def lift(self, data: Any) -> Any:
        if data is None and self.optional:
            return None
        if len(self.members) == 1:
            return next(iter(self.members.values())).form.lift(data)
        if isinstance(data, dict) and data.keys() == {"$is", "value"}:
            name = data["$is"]
            if not isinstance(name, str) or name not in self.members:
                raise Misfit(f"{name!r} is not one of {', '.join(self.members)}")
            return self.members[name].form.lift(data["value"])
        return self._lift_unnamed(data)

    def _name_for(self, value: Any) -> str:
        for fits in (Member.is_exactly, Member.takes):
            for name, member in self.members.items():
                if fits(member, value):
                    return name
        raise Misfit(f"expected {' or '.join(self.members)}, got {type(value).__name__}")

    def _lift_unnamed(self, data: Any) -> Any:
        """Read a value without "$is", as SQL or a start by name writes it. Exactly one member must fit."""
        fitting: dict[str, Any] = {}
        for name, member in self.members.items():
            try:
                fitting[name] = member.form.lift(data)
            except Misfit:
                continue
        if len(fitting) == 1:
            return next(iter(fitting.values()))
        state = "could be" if fitting else "is not"
        options = " or ".join(fitting or self.members)
        raise Misfit(f'it {state} {options}: say which with {{"$is": "…", "value": …}}')


def object_keyed_by(key: Any) -> Any:
    return types.GenericAlias(dict, (key, None))


def is_pydantic(cls: Any) -> bool:
    # Looked up, not imported: a program that has a model has imported pydantic already.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def write_unknown(value: Any) -> Any:
    """Encode a value of a type that msgspec does not support."""
    if isinstance(value, PurePath):
        return str(value)
    if is_pydantic(type(value)):
        return value.model_dump(mode="json", round_trip=True, warnings="error")
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    raise NotImplementedError


def read_unknown(cls: Any, data: Any) -> Any:
    """Decode data as a type that msgspec does not support."""
    if is_pydantic(cls):
        # Validated as JSON, because a strict model does not accept a text for a date from Python objects.
        return cls.model_validate_json(msgspec.json.encode(data), by_alias=True, by_name=True)
    if not isinstance(data, str):
        raise Misfit(f"Expected `str`, got `{type(data).__name__}`")
    return cls(data)


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a record, or None for any other value."""
    cls = type(value)
    if is_pydantic(cls):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if dataclasses.is_dataclass(cls):
        names: Iterable[str] = (f.name for f in dataclasses.fields(cls))
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        names = cls._fields
    elif hasattr(cls, "__attrs_attrs__"):
        names = (attribute.name for attribute in cls.__attrs_attrs__)
    else:
        names = getattr(cls, "__struct_fields__", ())
        if not issubclass(cls, msgspec.Struct):
            return None
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def compares_whole(cls: Any) -> bool:
    """Tell whether `==` compares every field: a user-defined one may compare only the id."""
    if is_pydantic(cls):
        return cls.__eq__ is sys.modules["pydantic"].BaseModel.__eq__
    code = getattr(cls.__eq__, "__code__", None)
    generated = code is None or code.co_filename.startswith("<")
    return generated and all(each.compare for each in _dataclass_fields(cls))


def _dataclass_fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _expect(value: Any, *kinds: type) -> None:
    if not isinstance(value, kinds):
        raise Misfit(f"expected {' or '.join(kind.__name__ for kind in kinds)}, got {type(value).__name__}")


def at(step: str, convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert a part of a value, and prefix the path of a Misfit with its step."""
    try:
        return convert(value)
    except Misfit as misfit:
        raise Misfit(misfit.reason, step + misfit.path) from None
