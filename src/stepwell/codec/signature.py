"""Encode inputs and results as JSON. Encoding is strict, so that every stored value can be read.

Every encoded value is decoded at once with its own type and compared. A value that would change is refused; the error
names the parameter and the path to the cause.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET

from stepwell.codec.annotations import Storage, Unstorable, hints_of, storage_of
from stepwell.codec.faults import LIMIT, check_bytes, find_change, find_fault, is_same, with_plain_floats
from stepwell.codec.stored import as_stored
from stepwell.codec.types import Misfit, at, read_unknown, write_unknown
from stepwell.model.errors import InvalidSetting, NotDecodable, NotEncodable

_STAR = "*"
_SCALARS = (str, int, bool)
_PLAIN_INT = 2**53
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_write = msgspec.json.Encoder(enc_hook=write_unknown).encode
_read_plain = msgspec.json.Decoder().decode
_fields = msgspec.structs.astuple


def encode(value: Any, *, where: str) -> bytes:
    """Encode a value without a type. It is read back as plain JSON."""
    return _PLAIN.encode(value, where)


def decode(data: bytes) -> Any:
    return _PLAIN.decode(data, "the value")


def encode_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Encode the input of a start by name, without the function. Positional arguments go under `*`."""
    call: dict[str, Any] = {_STAR: list(args), **kwargs} if args else kwargs
    try:
        return _PLAIN.encode_unexplained(call)
    except Exception as error:
        _refuse_call(args, kwargs, error)


def _refuse_call(args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> NoReturn:
    named = [(f"argument {i + 1}", value) for i, value in enumerate(args)]
    named += [(f"parameter {name!r}", value) for name, value in kwargs.items()]
    for where, value in named:
        if fault := find_fault(value):
            raise NotEncodable(_placed(where, fault.path), fault.reason) from None
    raise NotEncodable("the input", Misfit.of(error).reason) from error


class Value:
    """Encoder and decoder for values of one annotation."""

    def __init__(self, storage: Storage, *, normalized: bool = False) -> None:
        """Prepare the codec. `normalized` values are delivered before they are stored, so write them as jsonb would."""
        self._storage = storage
        self._arranged = normalized and storage.ordered
        self._read = msgspec.json.Decoder(storage.form.wire, dec_hook=read_unknown).decode
        self._form = None if storage.native else storage.form
        self._none = self._encoded_none()

    def _encoded_none(self) -> bytes | None:
        """Return the encoding of None, which most results are; return None if the annotation does not allow it."""
        try:
            return self._encode(None)
        except Exception:
            return None

    def encode(self, value: Any, where: str) -> bytes:
        if value is None and self._none is not None:
            return self._none
        try:
            return self._encode(value)
        except Exception as error:
            fault = find_fault(value) or Misfit.of(error)
            raise NotEncodable(_placed(where, fault.path), fault.reason) from error

    def encode_unexplained(self, value: Any) -> bytes:
        if value is None and self._none is not None:
            return self._none
        return self._encode(value)

    def _encode(self, value: Any) -> bytes:
        data = _write(value if self._form is None else self._form.lower(value))
        if self._arranged:
            data = as_stored(data)
        if self._storage.mixed:
            data = with_plain_floats(data)
        check_bytes(data)
        _check_unchanged(value, self._lifted(data), self._storage)
        return data

    def decode(self, data: bytes, where: str) -> Any:
        try:
            read = self._read(data)
            return read if self._form is None else self._form.lift(read)
        except Exception as error:
            misfit = Misfit.of(error)
            raise NotDecodable(_placed(where, misfit.path), misfit.reason) from error

    def _lifted(self, data: bytes) -> Any:
        read = self._read(data)
        return read if self._form is None else self._form.lift(read)


_PLAIN = Value(storage_of(Any))


def value_of(annotation: Any, where: str) -> Value:
    """Return the codec of an annotation. If the annotation cannot be stored, the error names `where`."""
    return Value(_stored(annotation, where))


class Signature:
    """Encoder and decoder for the input and the result of a definition's function."""

    def __init__(self, fn: Callable[..., Any], *, name: str) -> None:
        self._name = name
        self._signature = inspect.signature(fn)
        self._storages = _storages(fn, name)
        self._names = tuple(self._storages)
        self._lowered = [(key, each.form) for key, each in self._storages.items() if not each.native]
        self._compared = {key for key, each in self._storages.items() if not each.comparable}
        self._mixed = any(each.mixed for each in self._storages.values())
        parameters = self._signature.parameters.values()
        self._positional = tuple(each.name for each in parameters if each.kind in _POSITIONAL)
        self._by_keyword = frozenset(each.name for each in parameters if each.kind in _BY_KEYWORD)
        self._var_positional = _name_of(parameters, inspect.Parameter.VAR_POSITIONAL)
        self._var_keyword = _name_of(parameters, inspect.Parameter.VAR_KEYWORD)
        self._all_positional = self._positional == self._names
        kinds = [each.form.wire for each in self._storages.values()]
        are_scalars = self._all_positional and not self._lowered and all(kind in _SCALARS for kind in kinds)
        self._scalars = tuple(kinds) if are_scalars else None
        self._ints = tuple(i for i, kind in enumerate(kinds) if kind is int)
        self._simple = self._var_positional is None and self._var_keyword is None
        self._required = {*self._positional, *self._by_keyword} - {
            each.name for each in parameters if each.default is not each.empty
        }
        self._struct = self._made_struct()
        self._read = msgspec.json.Decoder(self._struct, dec_hook=read_unknown).decode
        self._result = _result_of(fn, name)
        self._of_result = f"the result of {name}"

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode a call as an object keyed by parameter. Parameters that the call omits are left to the defaults."""
        if not kwargs and (data := self._encoded_scalars(args)) is not None:
            return data
        values = self._named(args, kwargs)
        try:
            data = self._written(values)
            check_bytes(data)
            self._check_unchanged(values, self._lifted(data))
        except Exception as error:
            self._refuse(values, error)
        return data

    def _encoded_scalars(self, args: tuple[Any, ...]) -> bytes | None:
        """Encode arguments whose types are exactly the annotated scalars, and that JSON preserves. This fast path
        needs no check by decoding. Return None if it does not apply."""
        if tuple(map(type, args)) != self._scalars:
            return None
        for i in self._ints:
            if not -_PLAIN_INT <= args[i] <= _PLAIN_INT:
                return None
        try:
            data = _write(self._struct(*args))
        except Exception:
            return None  # the general path raises the error
        return None if len(data) > LIMIT or b"\\u0000" in data else data

    def decode_input(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            values = _fields(self._read(data)) if not self._lowered else self._lifted(data)
        except Exception as error:
            values = self._read_otherwise(data, error)
        if not self._all_positional:
            return self._arguments(values)
        for value in values:
            if value is UNSET:
                return self._arguments(values)
        return values, {}

    def _arguments(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        positional = len(self._positional)
        for i, (name, value) in enumerate(zip(self._names, values, strict=True)):
            if value is UNSET:
                if name in self._required:
                    raise NotDecodable(self._where(name), "it is required, and was not given")
            elif i < positional and i == len(args):
                args.append(value)
            elif name == self._var_positional:
                self._extend(args, value)
            elif name == self._var_keyword:
                kwargs.update(value)
            else:
                kwargs[name] = value
        return tuple(args), kwargs

    def encode_result(self, value: Any) -> bytes:
        return self._result.encode(value, self._of_result)

    def decode_result(self, data: bytes) -> Any:
        return self._result.decode(data, self._of_result)

    def _made_struct(self) -> type[msgspec.Struct]:
        # Fields are numbered, because a parameter may have a name that a struct's field must not have.
        fields = [
            (f"p{i}", kept.form.wire, msgspec.field(default=UNSET, name=name))
            for i, (name, kept) in enumerate(self._storages.items())
        ]
        return msgspec.defstruct("Input", fields, forbid_unknown_fields=True)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not self._simple or len(args) > len(self._positional):
            return self._bound(args, kwargs)
        values = dict(zip(self._positional, args, strict=False))
        for name in kwargs:
            if name in values or name not in self._by_keyword:
                return self._bound(args, kwargs)
            values[name] = kwargs[name]
        if len(values) < len(self._names) and not self._required <= values.keys():
            return self._bound(args, kwargs)
        return values

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self._name}() {error}") from None

    def _written(self, values: dict[str, Any]) -> bytes:
        if self._lowered:
            values = dict(values)
            for name, form in self._lowered:
                if name in values:
                    values[name] = at(f".{name}", form.lower, values[name])
        data = _write(values)
        return with_plain_floats(data) if self._mixed else data

    def _lifted(self, data: bytes) -> tuple[Any, ...]:
        values = _fields(self._read(data))
        if not self._lowered:
            return values
        lifted = dict(zip(self._names, values, strict=True))
        for name, form in self._lowered:
            if lifted[name] is not UNSET:
                lifted[name] = at(f".{name}", form.lift, lifted[name])
        return tuple(lifted.values())

    def _check_unchanged(self, values: dict[str, Any], read: tuple[Any, ...]) -> None:
        for name, value in zip(self._names, read, strict=True):
            if value is UNSET or (name not in self._compared and is_same(values[name], value)):
                continue
            try:
                _check_unchanged(values[name], value, self._storages[name])
            except Misfit as misfit:
                raise Misfit(misfit.reason, f".{name}{misfit.path}") from None

    def _refuse(self, values: dict[str, Any], error: Exception) -> NoReturn:
        for name, value in values.items():
            if fault := find_fault(value):
                raise NotEncodable(_placed(self._where(name), fault.path), fault.reason) from None
        misfit = Misfit.of(error)
        raise NotEncodable(self._where_path(misfit.path), misfit.reason) from error

    def _read_otherwise(self, data: bytes, error: Exception) -> tuple[Any, ...]:
        """Decode input that was encoded without the function: with `*`, or with names for **kwargs."""
        try:
            given = _read_plain(data)
        except Exception:  # the first error names the place
            given = None
        if isinstance(given, dict) and not given.keys() <= self._storages.keys():
            arranged = _write(self._arranged(given))
            try:
                return self._lifted(arranged)
            except Exception as another:
                error = another
        misfit = Misfit.of(error)
        raise NotDecodable(self._where_path(misfit.path), misfit.reason) from error

    def _arranged(self, given: dict[str, Any]) -> dict[str, Any]:
        star = given.pop(_STAR, [])
        values = {name: given.pop(name) for name in self._names if name in given}
        if not isinstance(star, list):
            raise NotDecodable(self._where_input, '"*" is not a list')
        for name, value in zip(self._positional, star, strict=False):
            if name in values:
                raise NotDecodable(self._where(name), "it was given twice")
            values[name] = value
        if rest := star[len(self._positional) :]:
            if self._var_positional is None:
                reason = f"it takes {len(self._positional)} positional arguments, and {len(star)} were given"
                raise NotDecodable(self._where_input, reason)
            values[self._var_positional] = rest
        if given:
            if self._var_keyword is None:
                raise NotDecodable(self._where_input, f"it has no parameter {', '.join(map(repr, given))}")
            more = values.get(self._var_keyword, {})
            if not isinstance(more, dict):
                raise NotDecodable(self._where(self._var_keyword), "it is not an object")
            values[self._var_keyword] = {**more, **given}
        return values

    def _extend(self, args: list[Any], rest: tuple[Any, ...]) -> None:
        if rest and len(args) < len(self._positional):
            missing = self._positional[len(args)]
            raise NotDecodable(self._where(missing), f"it was not given, and *{self._var_positional} was")
        args.extend(rest)

    @property
    def _where_input(self) -> str:
        return f"the input of {self._name}"

    def _where(self, parameter: str) -> str:
        return f"parameter {parameter!r} of {self._name}"

    def _where_path(self, path: str) -> str:
        """Return the place in words, for a path that begins with the parameter's name."""
        for name in self._names:
            rest = path.removeprefix(f".{name}")
            if rest != path and rest[:1] in ("", ".", "["):
                return _placed(self._where(name), rest)
        return self._where_input


def _storages(fn: Callable[..., Any], name: str) -> dict[str, Storage]:
    """Return the storage format of each parameter: *args as a list, **kwargs as an object."""
    hints = hints_of(fn, name)
    storages: dict[str, Storage] = {}
    for parameter in inspect.signature(fn).parameters.values():
        annotation = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            annotation = types.GenericAlias(tuple, (annotation, ...))
        elif parameter.kind is parameter.VAR_KEYWORD:
            unpacked = typing.get_origin(annotation) is typing.Unpack
            inner = typing.get_args(annotation)[0] if unpacked else None
            annotation = inner or types.GenericAlias(dict, (str, annotation))
        storages[parameter.name] = _stored(annotation, f"parameter {parameter.name!r} of {name}")
    return storages


def _result_of(fn: Callable[..., Any], name: str) -> Value:
    annotation = hints_of(fn, name).get("return", Any)
    if typing.get_origin(annotation) in (collections.abc.Awaitable, collections.abc.Coroutine):
        annotation = typing.get_args(annotation)[-1]
    if annotation in (typing.NoReturn, typing.Never):
        annotation = Any
    return Value(_stored(annotation, f"the result of {name}"), normalized=True)


def _stored(annotation: Any, where: str) -> Storage:
    try:
        return storage_of(annotation)
    except Unstorable as error:
        raise InvalidSetting(where, annotation, str(error)) from None


def _name_of(parameters: Iterable[inspect.Parameter], kind: Any) -> str | None:
    return next((each.name for each in parameters if each.kind is kind), None)


def _check_unchanged(given: Any, read: Any, storage: Storage) -> None:
    if storage.comparable and is_same(given, read):
        return
    # For an Any, find_change accepts a dataclass as an object without comparing its parts; find_fault checks these.
    if fault := find_change(given, read, loose=storage.loose) or find_fault(given):
        raise Misfit(fault.reason, fault.path)


def _placed(where: str, path: str) -> str:
    shown = path if len(path) <= 200 else f"{path[:200]}…"
    return f"{where} (at {shown})" if path else where
