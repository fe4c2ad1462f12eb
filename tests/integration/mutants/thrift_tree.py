"""Thrift's compact protocol as trees: read, changed in one place, written again. Slow, and without Stoker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)


class Raw(bytes):
    """Bytes that stand for a value as they are."""


@dataclass
class Field:
    """A field of a struct.

    Attributes:
        number: Of the field.
        kind: Of its value.
        value: int, bytes, `Items`, a struct, or `Raw`.
    """

    number: int
    kind: int
    value: Any


@dataclass
class Items:
    """A list: the kind of its elements, and these."""

    kind: int
    values: list[Any]


Struct = list[Field]


def unsigned(number: int) -> bytes:
    """Return a number, at most 64 bits, as a varint."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def signed(number: int) -> bytes:
    """Return a number as a zigzag varint."""
    return unsigned((number << 1 ^ number >> 63) & (1 << 64) - 1)


def read_struct(b: bytes, at: int) -> tuple[Struct, int]:
    """Return the struct at a place, and where it ends."""
    found: Struct = []
    number = 0
    while True:
        kind, delta = b[at] & 15, b[at] >> 4
        at += 1
        if kind == STOP:
            return found, at
        if delta:
            number += delta
        else:
            number, at = _signed_at(b, at)
        value, at = (None, at) if kind in (TRUE, FALSE) else _value(b, at, kind)
        found.append(Field(number, kind, value))


def _unsigned_at(b: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (b[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if b[at - 1] < 128:
            return number, at


def _signed_at(b: bytes, at: int) -> tuple[int, int]:
    number, at = _unsigned_at(b, at)
    return number >> 1 ^ -(number & 1), at


def _value(b: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (I16, I32, I64):
        return _signed_at(b, at)
    if kind in (TRUE, FALSE, BYTE):
        return Raw(b[at : at + 1]), at + 1
    if kind == DOUBLE:
        return Raw(b[at : at + 8]), at + 8
    if kind == BINARY:
        size, at = _unsigned_at(b, at)
        return b[at : at + size], at + size
    if kind == STRUCT:
        return read_struct(b, at)
    assert kind == LIST, kind
    num, element = b[at] >> 4, b[at] & 15
    at += 1
    if num == 15:
        num, at = _unsigned_at(b, at)
    values = []
    for _ in range(num):
        value, at = _value(b, at, element)
        values.append(value)
    return Items(element, values), at


def written(struct: Struct) -> bytes:
    """Return the bytes of a struct."""
    found = bytearray()
    number = 0
    for field in struct:
        delta = field.number - number
        number = field.number
        found += bytes([delta << 4 | field.kind]) if 0 < delta < 16 else bytes([field.kind]) + signed(number)
        found += _written(field.value)
    return bytes(found) + b"\0"


def _written(value: Any) -> bytes:
    if value is None or isinstance(value, Raw):
        return value or b""
    if isinstance(value, int):
        return signed(value)
    if isinstance(value, bytes):
        return unsigned(len(value)) + value
    if isinstance(value, Items):
        head = list_head(len(value.values), value.kind)
        return head + b"".join(_written(one) for one in value.values)
    return written(value)


def list_head(num: int, kind: int) -> bytes:
    """Return what a list begins with."""
    return bytes([num << 4 | kind]) if num < 15 else bytes([15 << 4 | kind]) + unsigned(num)


def value_of(struct: Struct, *numbers: int) -> Any:
    """Return the value of a field, by its number and those of the structs around it; None where there is none."""
    found: Any = struct
    for number in numbers:
        found = next((field.value for field in found if field.number == number), None)
        if found is None:
            return None
    return found


def set_value(struct: Struct, value: int, *numbers: int) -> None:
    """Set a number, where it is there."""
    for number in numbers[:-1]:
        struct = value_of(struct, number) or []
    for field in struct:
        if field.number == numbers[-1]:
            field.value = value


def structs_in(struct: Struct, name: str) -> Iterator[tuple[str, Struct]]:
    """Yield a struct and all those below it, each with the numbers that lead there."""
    yield name, struct
    for field in struct:
        if field.kind == STRUCT:
            yield from structs_in(field.value, f"{name}.{field.number}")
        elif isinstance(field.value, Items) and field.value.kind == STRUCT:
            for i, one in enumerate(field.value.values):
                yield from structs_in(one, f"{name}.{field.number}[{i}]")
