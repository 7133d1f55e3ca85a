"""Derive the storage format of a function's annotations, once, when a definition is registered."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal, NewType, TypeVar

import msgspec
from msgspec import inspect as shapes

from stepwell.codec.types import (
    ARRAYS,
    Array,
    Choice,
    EnumByName,
    FixedTuple,
    Form,
    Mapping,
    Member,
    Native,
    Record,
    compares_whole,
    is_pydantic,
    object_keyed_by,
)
from stepwell.model.errors import InvalidSetting

_UNIONS = (typing.Union, types.UnionType)
_WRAPPERS = (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)
_ABSTRACT: dict[Any, type] = {
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}
_ORDERED = {shapes.DictType, shapes.TypedDictType, shapes.FloatType}
_WITH_FIELDS = (shapes.CustomType, shapes.DataclassType, shapes.StructType, shapes.NamedTupleType)
_KEYS = (
    shapes.AnyType,
    shapes.StrType,
    shapes.IntType,
    shapes.FloatType,
    shapes.DecimalType,
    shapes.BytesType,
    shapes.DateTimeType,
    shapes.DateType,
    shapes.TimeType,
    shapes.TimeDeltaType,
    shapes.UUIDType,
    shapes.EnumType,
    shapes.LiteralType,
)


class Unstorable(Exception):
    """The annotation has no storable values."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage format of an annotation.

    `loose`: it contains an Any, for which a date is stored and its text is read back.
    `mixed`: integers and floats differ only in how they are written.
    `comparable`: two equal values have equal parts throughout.
    `ordered`: its values expose the order of keys, or the sign of a zero.
    """

    form: Form
    loose: bool
    mixed: bool
    comparable: bool
    ordered: bool

    @property
    def native(self) -> bool:
        return isinstance(self.form, Native)


def storage_of(annotation: Any) -> Storage:
    """Return the storage format of an annotation. Raise Unstorable if it has none."""
    forms = _Forms()
    form = forms.of(annotation)
    kinds = forms.kinds
    both = shapes.IntType in kinds and shapes.FloatType in kinds and shapes.UnionType in kinds
    loose = shapes.AnyType in kinds
    opaque = any(is_pydantic(kind) for kind in kinds)
    ordered = loose or opaque or not isinstance(form, Native) or not _ORDERED.isdisjoint(kinds)
    whole = all(map(compares_whole, kinds))
    return Storage(form, loose=loose, mixed=loose or both or opaque, comparable=whole, ordered=ordered)


def hints_of(fn: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the resolved annotations of a function. The error names the annotation that cannot be resolved."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    source: Any = fn if inspect.isroutine(fn) else type(fn).__call__
    try:
        return typing.get_type_hints(source, include_extras=True)
    except Exception as error:  # an annotation is an expression, and may raise anything
        scope = getattr(inspect.unwrap(source), "__globals__", {})
        for parameter, annotation in source.__annotations__.items():
            alone = types.SimpleNamespace(__annotations__={parameter: annotation})
            try:
                typing.get_type_hints(alone, globalns=scope)
            except Exception as cause:
                where = "the result" if parameter == "return" else f"parameter {parameter!r}"
                reason = f"it cannot be resolved ({cause}); define or import the type at the top of the module"
                raise InvalidSetting(f"{where} of {name}", annotation, reason) from None
        raise InvalidSetting(f"the annotations of {name}", source, str(error)) from None


def spelled(annotation: Any) -> str:
    """Render an annotation as its author would write it."""
    if isinstance(annotation, type) and not typing.get_origin(annotation):
        return annotation.__qualname__ if annotation.__module__ == "builtins" else _dotted(annotation)
    return str(annotation).removeprefix("typing.")


def _dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class _Forms:
    """A builder of one form. It collects the kinds of all types that the form contains."""

    def __init__(self) -> None:
        self.kinds: set[Any] = set()
        self._records: dict[Any, Record] = {}

    def of(self, annotation: Any) -> Form:
        annotation = _bare(annotation)
        if (kinds := _native_kinds(annotation)) is not None:
            self.kinds |= kinds
            return Native(annotation)
        if typing.get_origin(annotation) is Annotated:
            return self.of(annotation.__origin__)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        origin = _ABSTRACT.get(origin, origin)
        if origin in _UNIONS:
            return self._union(arguments)
        if origin in ARRAYS or origin is dict:
            return self._container(origin, arguments)
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return EnumByName(annotation)
        if _is_record(origin or annotation):
            return self._record(annotation, origin or annotation, arguments)
        raise Unstorable(f"{spelled(annotation)} cannot be stored as JSON")

    def _container(self, origin: Any, arguments: tuple[Any, ...]) -> Form:
        if origin is dict:
            key, item = arguments
            if _native_kinds(object_keyed_by(key)) is None:
                raise Unstorable(f"{spelled(key)} cannot be the key of a JSON object")
            return Mapping(key, self.of(item))
        if origin is tuple and arguments[-1] is not Ellipsis:
            return FixedTuple(tuple(self.of(each) for each in arguments))
        return Array(self.of(arguments[0]), origin)

    def _union(self, arguments: tuple[Any, ...]) -> Form:
        members: dict[str, Member] = {}
        flat = tuple(_flattened(arguments))
        if Any in flat:
            return self.of(Any)
        for each in flat:
            if each is type(None):
                continue
            member = Member(_runtime_class(each), self.of(each), _literals(each))
            name = "Literal" if member.values else member.cls.__name__
            if name in members:
                raise Unstorable(f"two types of the union are both {name}, and could not be told apart")
            members[name] = member
        return Choice(members, optional=type(None) in flat)

    def _record(self, annotation: Any, cls: Any, arguments: tuple[Any, ...]) -> Form:
        if annotation in self._records:
            return self._records[annotation]
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except NameError as error:
            raise Unstorable(f"{cls.__qualname__} has an annotation that cannot be resolved: {error}") from None
        filling = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
        record = self._records[annotation] = Record(cls)
        self.kinds.add(cls)
        for name in _field_names(cls, hints):
            try:
                record.fields[name] = self.of(_filled(hints[name], filling))
            except Unstorable as error:
                raise Unstorable(f"field {name!r} of {cls.__qualname__}: {error}") from None
        return record


def _native_kinds(annotation: Any) -> set[Any] | None:
    """Return msgspec's kinds of types, and the classes, of an annotation that it handles fully; None if it does not."""
    try:
        info = shapes.type_info(annotation)
    except Exception:  # TypeError, and any error from resolving the fields of a class
        return None
    kinds: set[Any] = set()
    for node in _nodes(info, set()):
        if isinstance(node, shapes.DictType) and not _can_be_key(node.key_type):
            return None
        if isinstance(node, shapes.CustomType) and not (is_pydantic(node.cls) or _is_path(node.cls)):
            return None
        kinds.add(type(node))
        if isinstance(node, _WITH_FIELDS):
            kinds.add(typing.get_origin(node.cls) or node.cls)
    return kinds


def _nodes(info: shapes.Type, seen: set[int]) -> Iterator[shapes.Type]:
    if id(info) in seen:
        return
    seen.add(id(info))
    yield info
    for name in info.__struct_fields__:
        value = getattr(info, name)
        for child in value if isinstance(value, tuple) else (value,):
            node = child.type if isinstance(child, shapes.Field) else child
            if isinstance(node, shapes.Type):
                yield from _nodes(node, seen)


def _can_be_key(info: shapes.Type) -> bool:
    if isinstance(info, shapes.UnionType):
        return all(_can_be_key(each) for each in info.types)
    return isinstance(info, _KEYS)


def _is_path(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, PurePath)


def _is_record(cls: Any) -> bool:
    if not isinstance(cls, type) and not typing.is_typeddict(cls):
        return False
    named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or named_tuple or issubclass(cls, msgspec.Struct)


def _field_names(cls: Any, hints: dict[str, Any]) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [f.name for f in dataclasses.fields(cls)]
    return list(getattr(cls, "_fields", ()) or getattr(cls, "__struct_fields__", ()) or hints)


def _bare(annotation: Any) -> Any:
    """Strip the parts of an annotation that do not affect the value: type aliases, Required, Final."""
    while True:
        if annotation is object:
            return Any
        if isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__value__"):  # `type X = …`, Python 3.12
            annotation = annotation.__value__
        elif typing.get_origin(annotation) in _WRAPPERS:
            annotation = typing.get_args(annotation)[0]
        else:
            return annotation


def _flattened(arguments: tuple[Any, ...]) -> Iterator[Any]:
    for each in map(_bare, arguments):
        if typing.get_origin(each) in _UNIONS:
            yield from _flattened(typing.get_args(each))
        else:
            yield each


def _literals(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


def _runtime_class(annotation: Any) -> Any:
    """Return the class of the annotation's values."""
    annotation = _bare(annotation)
    if typing.get_origin(annotation) is Annotated:
        return _runtime_class(annotation.__origin__)
    if _literals(annotation):
        return type(_literals(annotation)[0])
    origin = typing.get_origin(annotation) or annotation
    if typing.is_typeddict(origin):
        return dict
    if not isinstance(origin, type):
        raise Unstorable(f"{spelled(annotation)} cannot be told apart from others in a union")
    return _ABSTRACT.get(origin, origin)


def _filled(hint: Any, filling: dict[Any, Any]) -> Any:
    """Return a hint of a generic class, with its type variables replaced."""
    if isinstance(hint, TypeVar):
        return filling.get(hint, Any)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(filling.get(each, Any) for each in parameters)]
