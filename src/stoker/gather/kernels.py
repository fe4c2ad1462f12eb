"""Compiled loops that copy samples out of a window: rows of records, and lists.

Imported on first use only, because numba takes a tenth of a second to import. `take.py` has the same in plain NumPy
for machines without numba; the two are held equal by a test. All signatures are given, so that each loop exists once,
whatever its arrays may be; compiled once a machine, kept beside this file where that can be written. What is kept has
the loop that finds rows in it: whoever changes that one changes this file, too, or numba does not notice.

What both kinds of loops do, and why (docs/decisions/0007 and 0011; 4,096 records of 640 bytes from 1 million, mapped;
np.take of as many in memory of NumPy's own: 541 microseconds):

    ask ahead    rows some 20 kB ahead are asked for, on Intel's processors into L2: 8 rows ahead 425 microseconds,
                 16 rows 412, 32 rows 384; into L1, 8 rows ahead, 467
    wide moves   whole cache lines by vector registers: nothing is called and no length looked at
    stream       large batches of records are written past the caches: 14 GB/s by two threads instead of 10
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stoker.compiling import compile_loop, reads, writes
from stoker.order.compiled import TABLES, locate_range_into

_Function = TypeVar("_Function", bound=Callable[..., object])

_LINE_BYTES = 64
# How near to the core comes what is asked for ahead of its turn, as LLVM counts (3 is L1, 2 is L2), and how many rows
# or lists ahead that is, at most. An AMD core waits for as many lines in L1 as is asked for here, an Intel core for
# three times as many in L2 as in L1. Both in turn on an AMD EPYC, two threads against `memcpy`: stacked tensors 0.71 as
# on Intel and 0.80 so, all columns 0.67 and 0.77; with half or twice as many ahead less.
_IS_AMD = get_host_cpu_name().startswith("znver")
_NEARNESS, _MAX_AHEAD, _LISTS_AHEAD = (3, 16, 12) if _IS_AMD else (2, 32, 24)
# Bytes that are asked for ahead of their turn: near enough that they are still at hand when it is their turn.
_AHEAD_BYTES = 20 << 10
# Of a long row only the beginning is asked for: behind it the processor sees by itself where this leads.
_MAX_ASKED_BYTES = 2 << 10
# From this many bytes on, what is written goes past the caches: it would push out rows that were asked for, and be
# pushed out itself before anybody reads it.
_STREAMED_BYTES = 1 << 20
# Where lists are this long on average they are written past the caches, too: those from this size on by themselves,
# shorter ones side by side from a stage in L1. Where most are shorter that takes longer than it saves.
_LONG_LIST_BYTES, _STAGE_BYTES = 512, 4 << 10

_BYTES, _UINT32 = reads(types.uint8), reads(types.uint32)
_INT64, _INT64_2D = reads(types.int64), reads(types.int64, 2)
_OUT_BYTES, _OUT_INT32 = writes(types.uint8), writes(types.int32)
_OUT_INT64, _OUT_INT64_2D = writes(types.int64), writes(types.int64, 2)


def _compile(*arguments: object, returns: Callable[..., object] = types.void) -> Callable[[_Function], _Function]:
    return compile_loop(returns(*arguments))


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _prefetch(_typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]`, without waiting and without any effect on values."""
    signature = types.void(array, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(struct.data, [arguments[1]])
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0"
        )
        read, data = word(0), word(1)
        builder.call(function, [builder.bitcast(pointer, byte), read, word(_NEARNESS), data])
        return context.get_dummy_value()

    return signature, generate


def _copies(num_bytes: int, *, streams: bool = False) -> Any:
    """Return a function that copies whole blocks of so many bytes from one byte array to another.

    Args:
        num_bytes: Of a block.
        streams: Whether what is written goes past the caches; the target must begin at a multiple of `num_bytes` then.
    """

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def copy(_typing_context: Any, target: Any, at: Any, source: Any, begin: Any, num_blocks: Any) -> Any:
        signature = types.void(target, at, source, begin, num_blocks)
        block = ir.VectorType(ir.IntType(64), num_bytes // 8).as_pointer()

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            targets = context.make_array(signature.args[0])(context, builder, arguments[0])
            sources = context.make_array(signature.args[2])(context, builder, arguments[2])
            target = builder.bitcast(builder.gep(targets.data, [arguments[1]]), block)
            source = builder.bitcast(builder.gep(sources.data, [arguments[3]]), block)
            with cgutils.for_range(builder, arguments[4]) as loop:
                value = builder.load(builder.gep(source, [loop.index]))
                value.align = 1
                written = builder.store(value, builder.gep(target, [loop.index]))
                written.align = num_bytes if streams else 1
                if streams:
                    one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
                    written.set_metadata("nontemporal", one)
            return context.get_dummy_value()

        return signature, generate

    return copy


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _fence(_typing_context: Any) -> Any:
    """Let nobody see what is written from here on before what went past the caches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature, arguments
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_copy_lines = _copies(_LINE_BYTES)
_stream_lines = _copies(_LINE_BYTES, streams=True)
_copy_32, _copy_16, _copy_8 = _copies(32), _copies(16), _copies(8)


@_compile(_BYTES, _INT64, types.int64, _OUT_BYTES, types.int64, types.int64)
def take_lines(memory, index, num_bytes, out, out_bytes, at):
    """Copy records of whole cache lines. See `take.take_records`."""
    num = len(index)
    ahead = max(1, min(_MAX_AHEAD, _AHEAD_BYTES // num_bytes))
    asked = min(num_bytes, _MAX_ASKED_BYTES)
    num_lines = num_bytes // _LINE_BYTES
    streams = num * num_bytes >= _STREAMED_BYTES and (out.ctypes.data | out_bytes | at) % _LINE_BYTES == 0
    for i in range(min(ahead, num)):
        for byte in range(0, asked, _LINE_BYTES):
            _prefetch(memory, index[i] * num_bytes + byte)
    for i in range(num):
        if i + ahead < num:
            for byte in range(0, asked, _LINE_BYTES):
                _prefetch(memory, index[i + ahead] * num_bytes + byte)
        if streams:
            _stream_lines(out, i * out_bytes + at, memory, index[i] * num_bytes, num_lines)
        else:
            _copy_lines(out, i * out_bytes + at, memory, index[i] * num_bytes, num_lines)
    if streams:
        _fence()


@_compile(_BYTES, _INT64, types.int64, _INT64, _OUT_BYTES, types.int64, types.int64)
def put_lines(memory, index, num_bytes, places, out, out_bytes, at):
    """Copy records of whole cache lines, each to its place. See `take.take_records`.

    As `take_lines`, which is a loop of its own: it need not look where each goes.
    """
    num = len(index)
    ahead = max(1, min(_MAX_AHEAD, _AHEAD_BYTES // num_bytes))
    asked = min(num_bytes, _MAX_ASKED_BYTES)
    num_lines = num_bytes // _LINE_BYTES
    streams = num * num_bytes >= _STREAMED_BYTES and (out.ctypes.data | out_bytes | at) % _LINE_BYTES == 0
    for i in range(min(ahead, num)):
        for byte in range(0, asked, _LINE_BYTES):
            _prefetch(memory, index[i] * num_bytes + byte)
    for i in range(num):
        if i + ahead < num:
            for byte in range(0, asked, _LINE_BYTES):
                _prefetch(memory, index[i + ahead] * num_bytes + byte)
        if streams:
            _stream_lines(out, places[i] * out_bytes + at, memory, index[i] * num_bytes, num_lines)
        else:
            _copy_lines(out, places[i] * out_bytes + at, memory, index[i] * num_bytes, num_lines)
    if streams:
        _fence()


@_compile(_INT64, _INT64, _INT64, _INT64, _OUT_INT64, _OUT_INT64)
def extents(words, first, slot, row, starts, offsets):
    """Read where each list begins, and add up the lengths. See `take.extents`."""
    num = len(slot)
    total = 0
    offsets[0] = 0
    for i in range(min(_MAX_AHEAD, num)):
        _prefetch(words, first[slot[i]] + row[i])
    for i in range(num):
        if i + _MAX_AHEAD < num:
            _prefetch(words, first[slot[i + _MAX_AHEAD]] + row[i + _MAX_AHEAD])
        at = first[slot[i]] + row[i]
        begin = words[at]
        starts[i] = begin
        total += words[at + 1] - begin
        offsets[i + 1] = total


@_compile(_INT64, _INT64, _INT64, types.int64, _INT64, _INT64, _OUT_INT64, _OUT_INT64)
def value_extents(words, first, first_byte, value_bytes, slot, row, sources, offsets):
    """Read where the values of each list begin, and add up the lengths. See `borders.inner_borders`."""
    extents(words, first, slot, row, sources, offsets)
    for i in range(len(slot)):
        sources[i] = first_byte[slot[i]] + sources[i] * value_bytes


_STRIPS = (_UINT32, _INT64, _INT64, _INT64, _INT64, _INT64, _OUT_INT64_2D, _OUT_INT64_2D)


@_compile(*_STRIPS)
def strip_extents(halves, first, first_byte, value_bytes, slot, row, sources, offsets):
    """Read where the lists of each strip begin, and add up the lengths of each field. See `take.strip_extents`."""
    num, num_fields = len(slot), len(value_bytes)
    width = num_fields + 1
    offsets[:, 0] = 0
    for i in range(-_MAX_AHEAD, num):
        if i + _MAX_AHEAD < num:
            at = first[slot[i + _MAX_AHEAD]] + row[i + _MAX_AHEAD] * width
            _prefetch(halves, at)
            _prefetch(halves, at + num_fields)
        if i >= 0:
            at = first[slot[i]] + row[i] * width
            begin = first_byte[slot[i]] + types.int64(halves[at]) * 8
            for f in range(num_fields):
                count = types.int64(halves[at + 1 + f])
                sources[f, i] = begin
                offsets[f, i + 1] = offsets[f, i] + count
                begin += count * value_bytes[f]


@_compile(_BYTES, types.int64, _OUT_BYTES, *_STRIPS)
def _take_lines_and_strip_extents(
    records, num_bytes, out, halves, first, first_byte, value_bytes, slot, row, sources, offsets
):
    """Do what `take_lines` and `strip_extents` do, at once: numbers are read while records are waited for.

    Written out, not called: a function of so many arrays is not always compiled into its caller, and 40 nanoseconds a
    row slower then.
    """
    num, num_fields = len(row), len(value_bytes)
    width = num_fields + 1
    ahead = max(1, min(_MAX_AHEAD, _AHEAD_BYTES // max(1, num_bytes)))
    asked = min(num_bytes, _MAX_ASKED_BYTES)
    num_lines = num_bytes // _LINE_BYTES
    streams = num * num_bytes >= _STREAMED_BYTES and out.ctypes.data % _LINE_BYTES == 0
    offsets[:, 0] = 0
    for i in range(-ahead, num):
        if i + ahead < num:
            at = first[slot[i + ahead]] + row[i + ahead] * width
            _prefetch(halves, at)
            _prefetch(halves, at + num_fields)
            for byte in range(0, asked, _LINE_BYTES):
                _prefetch(records, row[i + ahead] * num_bytes + byte)
        if i < 0:
            continue
        if streams:
            _stream_lines(out, i * num_bytes, records, row[i] * num_bytes, num_lines)
        else:
            _copy_lines(out, i * num_bytes, records, row[i] * num_bytes, num_lines)
        at = first[slot[i]] + row[i] * width
        begin = first_byte[slot[i]] + types.int64(halves[at]) * 8
        for f in range(num_fields):
            count = types.int64(halves[at + 1 + f])
            sources[f, i] = begin
            offsets[f, i + 1] = offsets[f, i] + count
            begin += count * value_bytes[f]
    if streams:
        _fence()


@_compile(_OUT_BYTES, types.int64, _BYTES, types.int64, types.int64)
def _copy_exactly(target, at, memory, begin, num_bytes):
    """Copy so many bytes, and neither read nor write one beside them.

    Half of the time a byte beside a list would lie in a line that nobody has asked for. So what whole blocks leave over
    is the last block once more, up to the end.
    """
    if num_bytes >= 64:
        _copy_lines(target, at, memory, begin, num_bytes // 64)
        _copy_lines(target, at + num_bytes - 64, memory, begin + num_bytes - 64, 1)
    elif num_bytes >= 32:
        _copy_32(target, at, memory, begin, 1)
        _copy_32(target, at + num_bytes - 32, memory, begin + num_bytes - 32, 1)
    elif num_bytes >= 16:
        _copy_16(target, at, memory, begin, 1)
        _copy_16(target, at + num_bytes - 16, memory, begin + num_bytes - 16, 1)
    elif num_bytes >= 8:
        _copy_8(target, at, memory, begin, 1)
        _copy_8(target, at + num_bytes - 8, memory, begin + num_bytes - 8, 1)
    else:
        for byte in range(num_bytes):
            target[at + byte] = memory[begin + byte]


@_compile(_BYTES, types.int64, types.int64)
def _ask_for(memory, begin, num_bytes):
    for byte in range(begin - begin % _LINE_BYTES, begin + min(num_bytes, _MAX_ASKED_BYTES), _LINE_BYTES):
        _prefetch(memory, byte)


@_compile(_BYTES, _INT64, types.int64, _INT64, _OUT_BYTES)
def _stream_lists(memory, sources, value_bytes, offsets, out):
    """Copy lists past the caches, in whole lines, wherever they begin and end.

        lists   ├ 0 ┤├──── 1 ────┤├ 2 ┤├──────────── 3, long ────────────┤├ 4 ┤
        stage    └─────────┴─────────┴──┐                              └──┴ next stage
        out     │ line │ line │ line │ line │ line │ line │ line │ line │ ...

    Short ones are put side by side in a stage that stays in L1; its whole lines go out when it is full. A long one goes
    out by itself, but for the bytes that share a line with its neighbours.
    """
    num = len(sources)
    memory_of_stage = np.empty(_STAGE_BYTES + _LINE_BYTES, dtype=np.uint8)
    stage = memory_of_stage[-types.int64(memory_of_stage.ctypes.data) % _LINE_BYTES :]
    at, filled = 0, 0  # whole lines that are out, in bytes; bytes in the stage
    for i in range(-_LISTS_AHEAD, num):
        if i + _LISTS_AHEAD < num:
            j = i + _LISTS_AHEAD
            _ask_for(memory, sources[j], (offsets[j + 1] - offsets[j]) * value_bytes)
        if i < 0:
            continue
        begin = sources[i]
        num_bytes = (offsets[i + 1] - offsets[i]) * value_bytes
        is_long = num_bytes >= _LONG_LIST_BYTES
        head = -filled % _LINE_BYTES
        if is_long:
            _copy_exactly(stage, filled, memory, begin, head)
            filled += head
        if is_long or filled + num_bytes > _STAGE_BYTES:
            whole = filled - filled % _LINE_BYTES
            _stream_lines(out, at, stage, 0, whole // _LINE_BYTES)
            at, filled = at + whole, filled - whole
            _copy_exactly(stage, 0, stage, whole, filled)
        if is_long:
            num_lines = (num_bytes - head) // _LINE_BYTES
            _stream_lines(out, at, memory, begin + head, num_lines)
            at += num_lines * _LINE_BYTES
            begin, num_bytes = begin + head + num_lines * _LINE_BYTES, num_bytes - head - num_lines * _LINE_BYTES
        _copy_exactly(stage, filled, memory, begin, num_bytes)
        filled += num_bytes
    whole = filled - filled % _LINE_BYTES
    _stream_lines(out, at, stage, 0, whole // _LINE_BYTES)
    _copy_exactly(out, at + whole, stage, whole, filled - whole)
    _fence()


@_compile(types.int64, types.int64, returns=types.boolean)
def _are_long(num, num_bytes):
    return num_bytes >= max(_STREAMED_BYTES, num * _LONG_LIST_BYTES)


@_compile(_BYTES, _INT64, types.int64, _INT64, _OUT_BYTES)
def copy_lists(memory, sources, value_bytes, offsets, out):
    """Copy each list's values to its place. See `take.copy_lists`."""
    num = len(sources)
    if _are_long(num, offsets[num] * value_bytes) and out.ctypes.data % _LINE_BYTES == 0:
        _stream_lists(memory, sources, value_bytes, offsets, out)
        return
    for i in range(-_LISTS_AHEAD, num):
        if i + _LISTS_AHEAD < num:
            j = i + _LISTS_AHEAD
            _ask_for(memory, sources[j], (offsets[j + 1] - offsets[j]) * value_bytes)
        if i >= 0:
            num_bytes = (offsets[i + 1] - offsets[i]) * value_bytes
            _copy_exactly(out, offsets[i] * value_bytes, memory, sources[i], num_bytes)


@_compile(_BYTES, _INT64_2D, _INT64, _INT64_2D, _INT64, _OUT_BYTES)
def _copy_strips(memory, sources, value_bytes, offsets, begins, out):
    """Copy the lists of strips, a strip at a time: it is asked for as a whole.

    Whole lines are copied, so that short lists of any length take the same way. What is too much lies in the same
    strip, or behind it, where it is asked for as well; it is written over by the next list, or lies between two fields.
    """
    num_fields, num = sources.shape
    last = num_fields - 1
    for i in range(-_LISTS_AHEAD, num):
        if i + _LISTS_AHEAD < num:
            j = i + _LISTS_AHEAD
            begin = sources[0, j]
            end = sources[last, j] + (offsets[last, j + 1] - offsets[last, j]) * value_bytes[last]
            end = min(end, begin + _MAX_ASKED_BYTES) + _LINE_BYTES
            for byte in range(begin - begin % _LINE_BYTES, end, _LINE_BYTES):
                _prefetch(memory, byte)
        if i >= 0:
            for f in range(num_fields):
                num_bytes = (offsets[f, i + 1] - offsets[f, i]) * value_bytes[f]
                num_lines = (num_bytes + _LINE_BYTES - 1) // _LINE_BYTES
                _copy_lines(out, begins[f] + offsets[f, i] * value_bytes[f], memory, sources[f, i], num_lines)


@_compile(types.int64, *TABLES, _BYTES, types.int64, _OUT_BYTES)
def take_stretch(
    first,
    start,
    stop,
    key,
    shuffle,
    slot_starts,
    shifts,
    guide,
    guide_shift,
    first_slot,
    memory,
    num_bytes,
    out,
):
    """Find the records of consecutive positions and copy them. See `take.take_located`."""
    num = len(out) // num_bytes
    slot, row = np.empty(num, dtype=np.int64), np.empty(num, dtype=np.int64)
    locate_range_into(first, start, stop, key, shuffle, slot_starts, shifts, guide, guide_shift, first_slot, slot, row)
    take_lines(memory, row, num_bytes, out, num_bytes, 0)


@_compile(_BYTES, _INT64, _INT64_2D, _INT64_2D, _OUT_INT64, _OUT_BYTES, returns=types.int64)
def copy_fields(memory, value_bytes, sources, offsets, begins, out):
    """Copy the lists of several fields, one field behind the other, where there is room. See `take.take_rows`."""
    num_fields, num = sources.shape
    end = 0
    is_any_long = num_fields == 1
    for f in range(num_fields):
        begins[f] = end
        num_bytes = offsets[f, num] * value_bytes[f]
        is_any_long |= _are_long(num, num_bytes)
        end += (num_bytes + _LINE_BYTES - 1) // _LINE_BYTES * _LINE_BYTES + _LINE_BYTES  # see `_copy_strips`
    if end > len(out):
        return end
    if is_any_long:
        for f in range(num_fields):
            copy_lists(memory, sources[f], value_bytes[f], offsets[f], out[begins[f] :])
    else:
        _copy_strips(memory, sources, value_bytes, offsets, begins, out)
    return end


def _where_lists_lie(slot):
    fields = (_INT64, _UINT32, _BYTES, _INT64, _INT64, _INT64)
    return (*fields, slot, _OUT_INT64_2D, _OUT_INT64_2D, _OUT_INT64, _OUT_BYTES)


@_compile(_BYTES, _INT64, types.int64, _OUT_BYTES, *_where_lists_lie(_INT64), returns=types.int64)
def take_rows(
    records,
    row,
    num_bytes,
    out,
    words,
    halves,
    memory,
    first_place,
    first_byte,
    value_bytes,
    slot,
    sources,
    offsets,
    begins,
    values,
):
    """Copy records and the lists of several fields. See `take.take_rows`."""
    if len(value_bytes) == 1:  # see `windows.list_places.Fields`
        if num_bytes:
            take_lines(records, row, num_bytes, out, num_bytes, 0)
        value_extents(words, first_place, first_byte, value_bytes[0], slot, row, sources[0], offsets[0])
    else:
        _take_lines_and_strip_extents(
            records, num_bytes, out, halves, first_place, first_byte, value_bytes, slot, row, sources, offsets
        )
    return copy_fields(memory, value_bytes, sources, offsets, begins, values)


@_compile(
    *(types.int64, *TABLES),
    *(_BYTES, _OUT_INT64, types.int64, _OUT_BYTES, *_where_lists_lie(_OUT_INT64)),
    returns=types.int64,
)
def take_rows_of_stretch(
    first_position,
    start,
    stop,
    key,
    shuffle,
    slot_starts,
    shifts,
    guide,
    guide_shift,
    first_slot,
    records,
    row,
    num_bytes,
    out,
    words,
    halves,
    memory,
    first_place,
    first_byte,
    value_bytes,
    slot,
    sources,
    offsets,
    begins,
    values,
):
    """Find the rows of consecutive positions and copy their records and lists. See `take.take_rows`."""
    locate_range_into(
        first_position, start, stop, key, shuffle, slot_starts, shifts, guide, guide_shift, first_slot, slot, row
    )
    return take_rows(
        records,
        row,
        num_bytes,
        out,
        words,
        halves,
        memory,
        first_place,
        first_byte,
        value_bytes,
        slot,
        sources,
        offsets,
        begins,
        values,
    )


@_compile(_BYTES, types.int64, returns=types.int64)
def _read_run(memory, at):
    run = types.int64(memory[at]) | types.int64(memory[at + 1]) << 8
    return run | types.int64(memory[at + 2]) << 16 | types.int64(memory[at + 3]) << 24


@_compile(_BYTES, types.int64, types.int64, _INT64, _INT64, _INT64, _OUT_INT64)
def run_rows(memory, num_bytes, offset, first, slot, row, found):
    """Read which run each record is in. See `take.run_rows`."""
    num = len(row)
    for i in range(min(_MAX_AHEAD, num)):
        _prefetch(memory, row[i] * num_bytes + offset)
    for i in range(num):
        if i + _MAX_AHEAD < num:
            _prefetch(memory, row[i + _MAX_AHEAD] * num_bytes + offset)
        found[i] = first[slot[i]] + _read_run(memory, row[i] * num_bytes + offset)


@_compile(types.int64, _OUT_INT64, _OUT_INT32, returns=types.int64)
def _place_of(row, found, table):
    """Return where in `table`, whose size is a power of two, the number of a row stands, or would."""
    mask = len(table) - 1
    place = ((row * 0x1E3779B97F4A7C15) >> 20) & mask
    while table[place] >= 0 and found[table[place]] != row:
        place = (place + 1) & mask
    return place


@_compile(_INT64, _OUT_INT64, _OUT_INT32, _OUT_INT32, returns=types.int64)
def distinct(row, found, index, table):
    """Number different rows in the order in which they come first. See `take.distinct`.

    A row like the one before it, as in data that is grouped, costs a comparison; others are looked up in `table`.
    """
    num = 0
    for i in range(len(row)):
        if i > 0 and row[i] == row[i - 1]:
            index[i] = index[i - 1]
            continue
        place = _place_of(row[i], found, table)
        if table[place] < 0:
            table[place] = num
            found[num] = row[i]
            num += 1
        index[i] = table[place]
    return num


@_compile(
    *(_BYTES, _INT64, types.int64, _OUT_BYTES, types.int64, _INT64, _INT64),
    *(_OUT_INT64, _OUT_INT64, _OUT_INT32, _OUT_INT32),
    returns=types.int64,
)
def take_lines_and_runs(memory, index, num_bytes, out, offset, first, slot, found_slot, found, number, table):
    """Do what `take_lines`, `run_rows` and `distinct` do, at once. See `take.take_runs`.

    What a record shares is looked up while the record is at hand, and not by a way through memory of its own.
    """
    num = len(index)
    ahead = max(1, min(_MAX_AHEAD, _AHEAD_BYTES // num_bytes))
    asked = min(num_bytes, _MAX_ASKED_BYTES)
    num_lines = num_bytes // _LINE_BYTES
    streams = num * num_bytes >= _STREAMED_BYTES and out.ctypes.data % _LINE_BYTES == 0
    num_found = 0
    last = -1
    for i in range(-ahead, num):
        if i + ahead < num:
            for byte in range(0, asked, _LINE_BYTES):
                _prefetch(memory, index[i + ahead] * num_bytes + byte)
        if i < 0:
            continue
        begin = index[i] * num_bytes
        if streams:
            _stream_lines(out, i * num_bytes, memory, begin, num_lines)
        else:
            _copy_lines(out, i * num_bytes, memory, begin, num_lines)
        row = first[slot[i]] + _read_run(memory, begin + offset)
        if row == last:
            number[i] = number[i - 1]
            continue
        last = row
        place = _place_of(row, found, table)
        if table[place] < 0:
            table[place] = num_found
            found[num_found] = row
            found_slot[num_found] = slot[i]
            num_found += 1
        number[i] = table[place]
    if streams:
        _fence()
    return num_found
