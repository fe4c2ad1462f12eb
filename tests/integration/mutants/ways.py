"""Every way to make a file lie in one place."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tests.integration.mutants.files import (
    PLAIN_BYTES,
    STORED_BYTES,
    Page,
    Parts,
    Sound,
    is_packed,
    make,
    packed,
    take_apart,
    unpacked,
    with_footer,
)
from tests.integration.mutants.thrift_tree import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Field,
    Items,
    Raw,
    Struct,
    list_head,
    set_value,
    structs_in,
    unsigned,
    written,
)


class Mutant(NamedTuple):
    """A file that lies.

    Attributes:
        name: Where, and how.
        in_page: Whether in a page or its header, so that an error can tell column and row group.
        content: Makes its bytes.
    """

    name: str
    in_page: bool
    content: Callable[[], bytes]


_64 = 1 << 64
_NUMBERS = (-1, 0, 1, 7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**31), -(2**63))
# Lengths that lead back to where they stand, in arithmetic of 64 bits, and others.
_BACK = tuple(_64 - k for k in (1, 2, 10, 11, 12, 13, 14, 15, 20, 40))
_LENGTHS = (*_BACK, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63)


@lru_cache(maxsize=4)
def mutants(sound: Sound) -> list[Mutant]:
    """Return all of them of a sound file."""
    content = make(sound)
    found = list(_whole_file(content))
    parts = take_apart(content)
    for name, change in _tree_changes(parts.footer, "footer"):
        found.append(Mutant(name, False, lambda change=change: _with_other_footer(content, change)))
    for c, pages in enumerate(parts.chunks):
        for p, page in enumerate(pages):
            where = f"chunk {c} page {p}: "
            headers = [
                (name, lambda page, change=change: change(page.header))
                for name, change in _tree_changes(page.header, "header")
            ]
            for name, alter in [*headers, *_body_changes(page, sound.codec)]:

                def made(c: int = c, p: int = p, alter: Callable[[Page], object] = alter) -> bytes:
                    return _changed(content, lambda parts: alter(parts.chunks[c][p]))

                found.append(Mutant(where + name, True, made))

            def twice(c: int = c, p: int = p) -> bytes:
                return _changed(content, lambda parts: parts.chunks[c].insert(p, parts.chunks[c][p]))

            def without(c: int = c, p: int = p) -> bytes:
                return _changed(content, lambda parts: parts.chunks[c].pop(p))

            found += [Mutant(where + "twice", True, twice), Mutant(where + "left out", True, without)]
    return found


def damaged(sound: Sound, seed: int) -> Mutant:
    """Return a file of which some bytes of pages are others, by chance: flipped, written over, moved, or left out."""
    chance = random.Random(f"{sound} {seed}")
    content = bytearray(make(sound))
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at, num = chance.randrange(4, end), chance.choice([1, 1, 2, 4, 8])
        way = chance.randrange(5)
        if way < 2:
            content[at] ^= 1 << chance.randrange(8)
        elif way == 2:
            content[at] = chance.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        else:
            some = chance.randbytes(num) if way == 3 else content[(start := chance.randrange(4, end)) : start + num]
            content[at : min(at + num, end)] = some[: end - at]
    return Mutant(f"damage {seed}", True, lambda: bytes(content))


def _changed(content: bytes, change: Callable[[Parts], object]) -> bytes:
    parts = take_apart(content)
    change(parts)
    return parts.put_together()


def _with_other_footer(content: bytes, change: Callable[[Struct], object]) -> bytes:
    footer = take_apart(content).footer
    change(footer)
    return with_footer(content[: -8 - int.from_bytes(content[-8:-4], "little")], footer)


def _whole_file(content: bytes) -> Iterator[Mutant]:
    length = int.from_bytes(content[-8:-4], "little")

    def ends(size: int) -> bytes:
        return content[:-8] + (size % 2**32).to_bytes(4, "little") + content[-4:]

    for size in (0, 1, length - 1, length + 1, length // 2, len(content) - 8, len(content), 2**31 - 1, 2**31, -1):
        yield Mutant(f"a footer of {size} bytes", False, lambda size=size: ends(size))
    for cut in (1, 4, 8, length, length + 8, len(content) - 4):
        yield Mutant(f"cut off by {cut}", False, lambda cut=cut: content[:-cut])
    for at in (4, len(content) // 2, len(content) - 8 - length):
        yield Mutant(f"a byte more at {at}", False, lambda at=at: content[:at] + b"\0" + content[at:])
        yield Mutant(f"a byte less at {at}", False, lambda at=at: content[:at] + content[at + 1 :])


def _tree_changes(root: Struct, name: str) -> Iterator[tuple[str, Callable[[Struct], object]]]:
    """Yield changes of a struct and of those below it."""
    for s, (where, struct) in enumerate(structs_in(root, name)):
        for said, change in _struct_changes(struct):

            def changed(root: Struct, s: int = s, change: Callable[[Struct], object] = change) -> None:
                change([one for _, one in structs_in(root, name)][s])

            yield where + said, changed


def _struct_changes(struct: Struct) -> Iterator[tuple[str, Callable[[Struct], object]]]:
    """Yield changes of one struct, without those below it."""

    def put(i: int, value: Any) -> Callable[[Struct], object]:
        return lambda struct: setattr(struct[i], "value", value)

    for i, field in enumerate(struct):
        where = f".{field.number}"
        yield f"{where} left out", lambda struct, i=i: struct.pop(i)
        for kind in (I32, I64, BINARY, LIST, STRUCT):
            if kind != field.kind:
                yield f"{where} of kind {kind}", lambda struct, i=i, kind=kind: setattr(struct[i], "kind", kind)
        if field.kind in (I32, I64):
            near = {field.value - 1, field.value + 1, field.value * 2, field.value + 2**32, field.value - 2**32}
            for number in sorted({*_NUMBERS, *near} - {field.value}):
                yield f"{where} is {number}", put(i, number)
            yield f"{where} is longer than 64 bits", put(i, Raw(b"\xff" * 10 + b"\x7f"))
            yield f"{where} never ends", put(i, Raw(b"\x80" * 40))
        elif field.kind == BINARY:
            for length in (0, len(field.value) - 1, len(field.value) + 1, *_LENGTHS):
                if length >= 0:
                    yield f"{where} of {length} bytes", put(i, Raw(unsigned(length) + field.value))
        elif isinstance(field.value, Items):
            rest = written([Field(1, LIST, field.value)])[1 + len(list_head(len(field.value.values), 0)) : -1]
            for num in (0, len(field.value.values) - 1, len(field.value.values) + 1, *_LENGTHS):
                if num >= 0:
                    yield f"{where} of {num} elements", put(i, Raw(list_head(num, field.value.kind) + rest))
            for kind in range(13):
                if kind != field.value.kind:
                    yield f"{where} of elements {kind}", put(i, Raw(list_head(len(field.value.values), kind) + rest))
    for length in _LENGTHS:
        yield f" and {length} bytes more", _more(BINARY, unsigned(length))
        yield f" and {length} numbers more", _more(LIST, list_head(length, I32))
        yield f" and {length} bools more", _more(LIST, list_head(length, 1))
        yield f" and {length} structs more", _more(LIST, list_head(length, STRUCT))
    for kind in range(10, 16):
        yield f" and a field of kind {kind}", _more(kind, b"\xff\xff\xff\xff\x07")
    for depth in (5, 29, 31, 33, 100, 10_000):
        yield f" and lists in lists, {depth} deep", _more(LIST, list_head(1, LIST) * depth + list_head(0, I32))
        yield f" and structs in structs, {depth} deep", _more(STRUCT, b"\x1c" * depth + bytes(depth + 1))


def _more(kind: int, content: bytes) -> Callable[[Struct], object]:
    return lambda struct: struct.append(Field(99, kind, Raw(content)))


def _body_changes(page: Page, codec: str) -> Iterator[tuple[str, Callable[[Page], object]]]:
    """Yield changes of what lies behind a header: as it is stored, and as it was before it was compressed."""
    levels = page.num_level_bytes
    for said, change in _byte_changes(page.body):

        def stored(page: Page, change: Callable[[bytes], bytes] = change, *, is_noted: bool) -> None:
            page.body = change(page.body)
            if is_noted:
                set_value(page.header, len(page.body), STORED_BYTES)
                if codec == "none":
                    set_value(page.header, len(page.body), PLAIN_BYTES)

        yield f"stored {said}", lambda page, stored=stored: stored(page, is_noted=True)
        yield f"stored {said}, and its size not", lambda page, stored=stored: stored(page, is_noted=False)
    if not is_packed(page, codec):
        return
    plain = unpacked(page, codec)
    for said, change in _byte_changes(plain):
        for promised in ("as before", "as it is"):

            def repacked(page: Page, change: Callable[[bytes], bytes] = change, promised: str = promised) -> None:
                new = change(plain)
                size = len(plain) if promised == "as before" else len(new)
                page.body = page.body[:levels] + packed(new, codec, promised=size)
                set_value(page.header, len(page.body), STORED_BYTES)
                set_value(page.header, levels + size, PLAIN_BYTES)

            yield f"plain {said}, its size {promised}", repacked

    def in_two(page: Page) -> None:
        half = len(plain) // 2
        both = b"".join(packed(part, codec, promised=len(part)) for part in (plain[:half], plain[half:]))
        page.body = page.body[:levels] + both
        set_value(page.header, len(page.body), STORED_BYTES)

    yield "plain in two streams", in_two


def _byte_changes(content: bytes) -> Iterator[tuple[str, Callable[[bytes], bytes]]]:
    size = len(content)
    for cut in sorted({1, 2, 3, size // 2, size - 1, size}):
        if 0 < cut <= size:
            yield f"shorter by {cut}", lambda b, cut=cut: b[:-cut]
    for num in (1, 8, 1000):
        yield f"longer by {num} zeros", lambda b, num=num: b + bytes(num)
        yield f"longer by {num} ones", lambda b, num=num: b + b"\xff" * num
    for at in sorted({0, 1, 2, 3, 4, 5, 6, 7, 8, size // 2, size - 1}):
        if 0 <= at < size:
            for value in (0, 1, 0x7F, 0x80, 0xFF):
                yield f"with {value} at {at}", lambda b, at=at, value=value: b[:at] + bytes([value]) + b[at + 1 :]
            yield f"with large numbers at {at}", lambda b, at=at: b[:at] + b"\xff\xff\xff\xff\x0f" + b[at + 5 :]
            yield f"without byte {at}", lambda b, at=at: b[:at] + b[at + 1 :]
