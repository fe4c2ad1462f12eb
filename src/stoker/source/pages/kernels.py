"""The compiled loops that decode pages: a column chunk in one call.

Whatever a page says is checked before it is believed: nothing is read or written outside of what was handed over. What
these loops do not know, or find wrong, they give back, and pyarrow decodes it, or says what is wrong.

Source:
    Apache Parquet format 2.11: parquet.thrift, Encodings.md (plain, dictionary, runs of bits, byte stream split).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
from numba import types

from stoker.addresses import (
    call_5,
    copy,
    load_1,
    load_4,
    load_8,
    load_few,
    mover,
    store_1,
    store_4,
    store_8,
    zero,
)
from stoker.compiling import compile_loop, reads, writes
from stoker.source.pages.header_kernels import scan
from stoker.source.pages.level_kernels import (
    BITS,
    END,
    LEFT,
    NEXT,
    NUM_CURSOR_NUMBERS,
    ONES,
    REPEATS,
    VALUE,
    begin_packed,
    begin_runs,
    flat_levels,
    list_levels,
    next_run,
)
from stoker.source.pages.numbers import (
    AT,
    BAD,
    DATA,
    DATA_V2,
    DEFINITION,
    DICTIONARY,
    DONE,
    EMPTY,
    ENCODING,
    FULL,
    IS_BIT,
    IS_LIST,
    IS_PACKED,
    IS_WORDS,
    KIND,
    NULLS,
    NUM_ENTRIES,
    NUM_PAGES,
    PLAIN_BYTES,
    REPETITION,
    ROWS,
    SNAPPY_LOOP,
    STORED_BYTES,
    TOO_MANY,
    VALUES,
    WIDTH,
    WORDS,
)
from stoker.source.pages.snappy_kernels import unsnap

__all__ = ["decode", "decode_many", "scan", "scan_many", "take_words_apart", "unsnap"]

_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY, _BYTE_STREAM_SPLIT = 0, 2, 3, 8, 9

_BYTES = reads(types.uint8)
_OUT_BYTES, _OUT_INT64 = writes(types.uint8), writes(types.int64)
_move_4, _move_8 = mover(32, 32), mover(64, 64)

# ---------------------------------------------------------------------- values


@compile_loop(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64))
def _unpacked(bits, index, width, mask, limit):
    """Return number `index` of packed numbers of `width` bits, reading nothing from `limit` on."""
    bit = index * width
    at = bits + (bit >> 3)
    if at + 8 <= limit:
        return (load_8(at) >> (bit & 7)) & mask
    return (load_few(at, limit - at) >> (bit & 7)) & mask


@compile_loop(
    types.boolean(_OUT_INT64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64)
)
def _looked_up(cursor, num, bits, words, num_words, target, width, limit):
    """Copy `num` values of a dictionary to the address `target`; False where their places are cut short or wrong.

    Args:
        cursor: Of the places' runs.
        num: How many.
        bits: Of one place.
        words: Address of the dictionary.
        num_words: How many values it has.
        target: Where they go.
        width: Bytes of one value.
        limit: Address up to which may be read.
    """
    mask = (1 << bits) - 1
    while num > 0:
        if not next_run(cursor, bits):
            return False
        n = min(num, cursor[LEFT])
        if cursor[REPEATS]:
            if cursor[VALUE] >= num_words:
                return False
            word = words + cursor[VALUE] * width
            if width == 4:
                for i in range(n):
                    _move_4(target + i * 4, word)
            elif width == 8:
                for i in range(n):
                    _move_8(target + i * 8, word)
            else:
                for i in range(n):
                    copy(target + i * width, word, width)
        else:
            packed = cursor[BITS]
            # So many of them can be read eight bytes at a time.
            safe = n
            while safe > 0 and packed + ((safe - 1) * bits >> 3) + 8 > limit:
                safe -= 1
            if width == 4:
                for i in range(safe):
                    bit = i * bits
                    place = (load_8(packed + (bit >> 3)) >> (bit & 7)) & mask
                    if place >= num_words:
                        return False
                    _move_4(target + i * 4, words + place * 4)
            elif width == 8:
                for i in range(safe):
                    bit = i * bits
                    place = (load_8(packed + (bit >> 3)) >> (bit & 7)) & mask
                    if place >= num_words:
                        return False
                    _move_8(target + i * 8, words + place * 8)
            else:
                safe = 0
            for i in range(safe, n):
                place = _unpacked(packed, i, bits, mask, limit)
                if place >= num_words:
                    return False
                copy(target + i * width, words + place * width, width)
        target += n * width
        num -= n
    return True


@compile_loop(types.boolean(_OUT_INT64, types.int64, types.int64, types.int64, types.int64, _OUT_BYTES, types.int64))
def _bits(cursor, encoding, num, body, end, values, first):
    """Lay `num` bits out, a byte each, from `values[first]` on; False where they are cut short or not known."""
    if encoding == _PLAIN:
        if (num + 7) // 8 > end - body:
            return False
        begin_packed(cursor, body, num)
    elif encoding == _RLE:
        if end - body < 4 or load_4(body) > end - body - 4:
            return False
        begin_runs(cursor, body + 4, body + 4 + load_4(body))
    else:
        return False
    return flat_levels(cursor, num, values, first, True) >= 0


@compile_loop(types.int64(types.int64, types.int64))
def _joined(at, num):
    """Return four bytes, the lowest first, each `num` bytes behind the one before."""
    return load_1(at) | load_1(at + num) << 8 | load_1(at + 2 * num) << 16 | load_1(at + 3 * num) << 24


@compile_loop(types.void(types.int64, types.int64, types.int64, types.int64))
def _join_streams(target, num, width, streams):
    """Put values together of which all first bytes come first, then all second ones, and so on."""
    if width == 4:
        for i in range(num):
            store_4(target + i * 4, _joined(streams + i, num))
    elif width == 8:
        for i in range(num):
            store_8(target + i * 8, _joined(streams + i, num) | _joined(streams + 4 * num + i, num) << 32)
    else:
        for k in range(width):
            for i in range(num):
                store_1(target + i * width + k, load_1(streams + k * num + i))


@compile_loop(types.void(types.int64, types.int64, types.int64, _OUT_BYTES, types.int64, types.int64))
def _spread(target, num, num_there, valid, row, width):
    """Move values that lie side by side to the rows that have one, from the last one on; zeros lie at the others."""
    there = num_there
    left = num
    base = types.int64(valid.ctypes.data) + row
    # As many values as rows are left: all of these have theirs.
    while there < left:
        if left >= 8:
            eight = load_8(base + left - 8)
            if eight == ONES and (width == 4 or width == 8):
                for _ in range(8):
                    left -= 1
                    there -= 1
                    if width == 4:
                        _move_4(target + left * 4, target + there * 4)
                    else:
                        _move_8(target + left * 8, target + there * 8)
                continue
            if eight == 0:
                left -= 8
                for k in range(8 * width):
                    zero(target + left * width + k)
                continue
        # Here nulls come without a pattern, so nothing branches on them where a value is a number.
        for _ in range(min(8, left)):
            left -= 1
            has = np.int64(valid[row + left])
            there -= has
            to, source = target + left * width, target + there * width * has
            if width == 4:
                store_4(to, load_4(source) & -has)
            elif width == 8:
                store_8(to, load_8(source) & -has)
            elif width == 1:
                store_1(to, load_1(source) & -has)
            elif has:
                copy(to, source, width)
            else:
                for k in range(width):
                    zero(to + k)


@compile_loop(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64))
def _words(at, end, limit, num, lengths, room, room_end):
    """Copy byte arrays, each of which stands behind its length, one behind the other.

    Args:
        at: Address of the first one's length.
        end: Address where they end.
        limit: Address up to which may be read.
        num: How many.
        lengths: Address of their lengths, four bytes each; filled.
        room: Address where they go.
        room_end: Address up to which there is room.

    Returns:
        Address behind the last one there; 0 where they are cut short.
    """
    for i in range(num):
        if end - at < 4:
            return 0
        num_bytes = load_4(at)
        at += 4
        if num_bytes > end - at or num_bytes > room_end - room:
            return 0
        store_4(lengths + i * 4, num_bytes)
        # Short words by two numbers: a call costs more than they do. What lies behind them is written over.
        if num_bytes <= 16 and limit - at >= 16 and room_end - room >= 16:
            _move_8(room, at)
            _move_8(room + 8, at + 8)
        else:
            copy(room, at, num_bytes)
        at += num_bytes
        room += num_bytes
    return room


@compile_loop(types.int64(_BYTES, _OUT_BYTES, _OUT_BYTES))
def take_words_apart(b, lengths, words):
    """Take a page of byte arrays, each behind its length, apart.

    Args:
        b: The page.
        lengths: Filled: how long each is, four bytes each.
        words: Filled: one behind the other.

    Returns:
        DONE, or BAD where the page is cut short.
    """
    base, room = types.int64(b.ctypes.data), types.int64(words.ctypes.data)
    end, room_end = base + len(b), room + len(words)
    behind = _words(base, end, end, len(lengths) // 4, types.int64(lengths.ctypes.data), room, room_end)
    return BAD if behind == 0 else DONE


# ---------------------------------------------------------------------- a column chunk


@compile_loop(
    types.int64(
        reads(types.int64, 2),
        _BYTES,
        types.int64,
        types.int64,
        reads(types.int64),
        _OUT_BYTES,
        _OUT_BYTES,
        _OUT_BYTES,
        _OUT_BYTES,
        _OUT_INT64,
        _OUT_INT64,
    )
)
def decode(pages, content, unpack, context, form, scratch, dictionary, values, valid, offsets, state):
    """Decode pages; see `decoder.Decoder`.

    Args:
        pages: A row a page, in their order.
        content: Where they lie.
        unpack: Address of what decompresses, as `ZSTD_decompressDCtx` does, or `SNAPPY_LOOP`; 0 where pages are as
            they were.
        context: Its first argument.
        form: What the column is.
        scratch: Room for one page, and eight bytes more.
        dictionary: Room for its values, or for words that come without one; kept from call to call.
        values: Filled, one behind the other.
        valid: Of each row, whether it has a value: filled once one has none.
        offsets: Of lists.
        state: How far the column chunk was decoded; goes on from there.

    Returns:
        DONE, or BAD where something is not as it should be, or not known here.
    """
    width, full, is_list = form[WIDTH], form[FULL], form[IS_LIST]
    base = types.int64(content.ctypes.data)
    cursors = np.empty((3, NUM_CURSOR_NUMBERS), np.int64)
    for p in range(len(pages)):
        page = pages[p]
        if page[AT] < 0 or page[AT] + page[STORED_BYTES] > len(content):
            return BAD
        begin = base + page[AT]
        levels = page[DEFINITION] + page[REPETITION]
        body, end = begin + levels, begin + page[STORED_BYTES]
        limit = end
        if page[IS_PACKED] and unpack != 0:
            num_bytes = page[PLAIN_BYTES] - levels
            if num_bytes + 8 > len(scratch):
                return BAD
            room = types.int64(scratch.ctypes.data)
            if num_bytes > 0 or end > body:
                if unpack == SNAPPY_LOOP:
                    done = unsnap(body, end, room, num_bytes)
                else:
                    done = call_5(unpack, context, room, num_bytes, body, end - body)
                if done != num_bytes:
                    return BAD
            body, end = room, room + num_bytes
            limit = end + 8
        elif page[STORED_BYTES] != page[PLAIN_BYTES]:
            return BAD
        num = page[NUM_ENTRIES]
        if page[KIND] == DICTIONARY:
            if page[ENCODING] != _PLAIN and page[ENCODING] != _PLAIN_DICTIONARY:
                return BAD
            if num * width > end - body or num * width > len(dictionary):
                return BAD
            copy(types.int64(dictionary.ctypes.data), body, num * width)
            state[WORDS] = num
            continue
        if page[KIND] != DATA and page[KIND] != DATA_V2:
            return BAD
        # Levels come first: of the first version inside of what was compressed, each behind its length.
        if page[KIND] == DATA:
            for i in range(2):
                if (is_list if i == 0 else full) == 0:
                    continue
                if end - body < 4:
                    return BAD
                num_bytes = load_4(body)
                body += 4
                if num_bytes > end - body:
                    return BAD
                begin_runs(cursors[i], body, body + num_bytes)
                body += num_bytes
        else:
            begin_runs(cursors[0], begin, begin + page[REPETITION])
            begin_runs(cursors[1], begin + page[REPETITION], begin + levels)
        row = state[ROWS]
        num_there = num
        if is_list:
            num_there = list_levels(cursors[:2], num, full, form[EMPTY], offsets, state)
            if num_there < 0:
                return BAD
        else:
            if full:
                if num > len(valid) - row:
                    return BAD
                start_at, start_end = cursors[1, NEXT], cursors[1, END]
                had_nulls = state[NULLS] > 0
                num_there = flat_levels(cursors[1], num, valid, row, had_nulls)
                if num_there < 0:
                    return BAD
                if num_there < num and not had_nulls:
                    valid[:row] = 1
                    begin_runs(cursors[1], start_at, start_end)
                    flat_levels(cursors[1], num, valid, row, True)
                state[NULLS] += num - num_there
            state[ROWS] = row + num
        first = state[VALUES]
        room_for = num if not is_list else num_there
        if (first + room_for) * width > len(values):
            return BAD
        target = types.int64(values.ctypes.data) + first * width
        if form[IS_BIT]:
            if not _bits(cursors[2], page[ENCODING], num_there, body, end, values, first):
                return BAD
        elif page[ENCODING] == _BYTE_STREAM_SPLIT:
            if num_there * width != end - body:
                return BAD
            _join_streams(target, num_there, width, body)
        elif page[ENCODING] == _PLAIN and form[IS_WORDS]:
            room = types.int64(dictionary.ctypes.data)
            behind = _words(body, end, limit, num_there, target, room + state[WORDS], room + len(dictionary))
            if behind == 0:
                return BAD
            state[WORDS] = behind - room
        elif page[ENCODING] == _PLAIN:
            if num_there * width > end - body:
                return BAD
            copy(target, body, num_there * width)
        elif page[ENCODING] == _RLE_DICTIONARY or page[ENCODING] == _PLAIN_DICTIONARY:
            if num_there > 0:
                if end - body < 1:
                    return BAD
                bits = load_1(body)
                if bits > 32:
                    return BAD
                begin_runs(cursors[2], body + 1, end)
                words = types.int64(dictionary.ctypes.data)
                if not _looked_up(cursors[2], num_there, bits, words, state[WORDS], target, width, limit):
                    return BAD
        else:
            return BAD
        if num_there < room_for:
            _spread(target, num, num_there, valid, row, width)
        state[VALUES] = first + room_for
    return DONE


# ---------------------------------------------------------------------- several column chunks


@compile_loop(types.int64(_BYTES, reads(types.int64), writes(types.int64, 2), _OUT_INT64, writes(types.int64, 2)))
def scan_many(content, borders, pages, firsts, sums):
    """Read the headers of all pages of several column chunks. See `together.read_together`.

    Args:
        content: The column chunks, one behind the other.
        borders: Where each begins, and the last one ends.
        pages: Filled, a row a page.
        firsts: Filled: the first page of each column chunk, and the number of all pages.
        sums: Filled, as by `scan`, a row a column chunk; one that is not what it should be has no pages.

    Returns:
        DONE, or TOO_MANY where there are more than `pages` has rows.
    """
    num = 0
    for i in range(len(sums)):
        firsts[i] = num
        begin, end = borders[i], borders[i + 1]
        done = BAD
        try:
            done = scan(content[begin:end], pages[num:], sums[i])
        except Exception:
            done = BAD
        if done == TOO_MANY:
            return TOO_MANY
        if done != DONE:
            sums[i, NUM_PAGES] = 0
        for page in range(num, num + sums[i, NUM_PAGES]):
            pages[page, AT] += begin
        num += sums[i, NUM_PAGES]
    firsts[len(sums)] = num
    return DONE


@compile_loop(
    types.void(
        *(reads(types.int64, 2), reads(types.int64), _BYTES, types.int64, types.int64, reads(types.int64, 2)),
        *(reads(types.int64, 2), _OUT_BYTES, _OUT_BYTES, _OUT_BYTES, _OUT_BYTES, _OUT_INT64, writes(types.int64, 2)),
        _OUT_INT64,
    )
)
def decode_many(
    pages, firsts, content, unpack, context, forms, ends, scratch, words, values, valid, offsets, states, outcomes
):
    """Decode several column chunks. See `together.read_together`, and `decode`.

    Args:
        pages: Of all of them.
        firsts: The first page of each, and the number of all pages.
        content: Where they lie.
        unpack: Address of what decompresses, or 0.
        context: Its first argument.
        forms: What each column is.
        ends: Where the part of each column ends in words, values, valid and offsets. Shape [columns, 4].
        scratch: Room for the largest page, and eight bytes more.
        words: Room for the dictionaries of all.
        values: Filled, column by column.
        valid: Filled, column by column.
        offsets: Filled, column by column.
        states: Filled, a row a column.
        outcomes: Filled: what `decode` says of each.
    """
    begins = np.zeros(4, np.int64)
    for i in range(len(outcomes)):
        end = ends[i]
        outcomes[i] = decode(
            pages[firsts[i] : firsts[i + 1]],
            content,
            unpack,
            context,
            forms[i],
            scratch,
            words[begins[0] : end[0]],
            values[begins[1] : end[1]],
            valid[begins[2] : end[2]],
            offsets[begins[3] : end[3]],
            states[i],
        )
        for k in range(4):
            begins[k] = end[k]
