"""An object as a compiler leaves it, laid out as it will lie in memory: what of a linker's work can be done ahead.

object   sections, and places where addresses are missing       image   the sections side by side, each missing address
         .ltext  ....?....?...   .lrodata  ..?.....      ──►            that leads inside counted from the beginning;
                                                                        and where these are, and those that lead outside

All code of a large code model, which reaches anything anywhere, has whole addresses of eight bytes and nothing else.

Source:
    System V ABI, gABI 4.1, "Object Files"; AMD64 supplement, R_X86_64_64, large code model.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_MAGIC = b"\x7fELF\x02\x01"  # of 64 bits, little-endian
_HAS_BYTES, _SYMBOLS, _RELOCATIONS, _EMPTY = 1, 2, 4, 8  # SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_NOBITS
_IS_WRITTEN, _IS_LOADED = 0x1, 0x2  # SHF_WRITE, SHF_ALLOC
_WHOLE_ADDRESS = 1  # R_X86_64_64
_SECTION, _SYMBOL, _RELOCATION = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_NO_SECTION = 0

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Image:
    """Machine code that has all but its addresses.

    Args:
        memory: Its bytes; eight for each address inside, counted from the beginning.
        inside: Where these addresses lie. Shape [N].
        outside: By the name of what they lead to, where addresses lie that lead outside.
        symbols: Where the functions and tables lie that were asked for, by name.
    """

    memory: bytes
    inside: list[int]
    outside: dict[str, list[int]]
    symbols: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    num_bytes: int
    link: int
    info: int
    align: int


def lay_out(code: bytes, wanted: list[str]) -> Image:
    """Return the image of an object.

    Args:
        code: The object.
        wanted: Functions and tables that must be in it.

    Raises:
        NotImplementedError: It is no object of the large code model, or has memory that it writes to itself.
        KeyError: One of `wanted` is not in it.
    """
    if not code.startswith(_MAGIC):
        raise NotImplementedError("no ELF object of 64 bits")
    sections = _sections(code)
    # How exceptions of C++ would find their way through the code: there are none.
    loaded = {
        number: section
        for number, section in enumerate(sections)
        if section.flags & _IS_LOADED and section.kind in (_HAS_BYTES, _EMPTY) and section.name != ".eh_frame"
    }
    begins, end = {}, 0
    for number, section in loaded.items():
        begins[number] = end = -(-end // max(section.align, 1)) * max(section.align, 1)
        end += section.num_bytes
    memory = bytearray(end)
    for number, section in loaded.items():
        if section.kind == _HAS_BYTES:
            if section.flags & _IS_WRITTEN and section.num_bytes:
                raise NotImplementedError(f"{section.name} is written to by the code")
            memory[begins[number] : begins[number] + section.num_bytes] = _bytes(code, section)
    symbols = _symbols(code, sections)
    inside, outside = [], dict[str, list[int]]()
    for section in sections:
        if section.kind != _RELOCATIONS or section.info not in loaded:
            continue
        for place, about, addend in _RELOCATION.iter_unpack(_bytes(code, section)):
            if about & 0xFFFFFFFF != _WHOLE_ADDRESS:
                raise NotImplementedError(f"an address of kind {about & 0xFFFFFFFF}")
            name, number, value = symbols[about >> 32]
            at = begins[section.info] + place
            if number == _NO_SECTION:
                if addend:
                    raise NotImplementedError(f"an address beside {name}")
                outside.setdefault(name, []).append(at)
            else:
                struct.pack_into("<q", memory, at, begins[number] + value + addend)
                inside.append(at)
    there = {name: begins[number] + value for name, number, value in symbols if number in begins}
    return Image(bytes(memory), inside, outside, {name: there[name] for name in wanted})


def put_in_place(image: Image, memory: npt.NDArray[np.uint8], addresses: dict[str, int]) -> None:
    """Write an image to where it will be run, with its addresses.

    Args:
        image: The image.
        memory: Where it will be. Shape [bytes of the image, or more].
        addresses: Of what lies outside, by name.

    Raises:
        KeyError: It needs an address that is not there.
    """
    memory[: len(image.memory)] = np.frombuffer(image.memory, np.uint8)
    places = np.array(image.inside, np.int64)
    _write(memory, places, _read(memory, places) + memory.ctypes.data)
    for name, at in image.outside.items():
        _write(memory, np.array(at, np.int64), np.full(len(at), addresses[name], np.uint64).view(np.int64))


def _read(memory: npt.NDArray[np.uint8], places: Int64) -> Int64:
    words: Int64 = memory[places[:, None] + np.arange(8)].view(np.int64)
    return words[:, 0]


def _write(memory: npt.NDArray[np.uint8], places: Int64, values: Int64) -> None:
    memory[places[:, None] + np.arange(8)] = values[:, None].view(np.uint8)


def _sections(code: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", code, 40)
    step, num, names = struct.unpack_from("<HHH", code, 58)
    rows = [_SECTION.unpack_from(code, table + number * step) for number in range(num)]
    names_at = rows[names][4]
    return [
        _Section(_text(code, names_at + name), kind, flags, offset, num_bytes, link, info, align)
        for name, kind, flags, _, offset, num_bytes, link, info, align, _ in rows
    ]


def _symbols(code: bytes, sections: list[_Section]) -> list[tuple[str, int, int]]:
    """Return name, section and place there of each symbol."""
    (table,) = (section for section in sections if section.kind == _SYMBOLS)
    names_at = sections[table.link].offset
    return [
        (_text(code, names_at + name), number, value)
        for name, _, _, number, value, _ in _SYMBOL.iter_unpack(_bytes(code, table))
    ]


def _bytes(code: bytes, section: _Section) -> bytes:
    return code[section.offset : section.offset + section.num_bytes]


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()
