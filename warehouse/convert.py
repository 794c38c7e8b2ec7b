"""Struct values to what pyarrow takes: nested structs to dicts, dicts to pairs.

`msgspec.to_builtins` would not do: it leaves defaults out, and a weight of 0.0 would be stored as
null.
"""

from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct, structs

__all__ = ["Convert", "converters"]

Convert = Callable[[Any], Any]


@cache
def converters(struct: type[Struct]) -> dict[str, Convert]:
    """The fields of a struct whose values must be converted, and how; None stays None."""
    hints = get_type_hints(struct)
    found = {one.name: _convert(hints[one.name]) for one in structs.fields(struct)}
    return {name: convert for name, convert in found.items() if convert is not None}


def _convert(annotation: Any) -> Convert | None:  # noqa: ANN401 (a type annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        inner = [one for one in arguments if one is not type(None)]
        return _convert(inner[0])
    if origin is dict:
        return lambda value: list(value.items()) if value else ()
    if origin is tuple:
        element = _convert(arguments[0])
        return element and (lambda value: [element(one) for one in value])
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _struct(annotation)
    return None


def _struct(struct: type[Struct]) -> Convert:
    inner = converters(struct)

    def convert(value: Struct) -> dict[str, Any]:
        fields = structs.asdict(value)
        for name, one in inner.items():
            if fields[name] is not None:
                fields[name] = one(fields[name])
        return fields

    return convert
