"""What can be counted: wrong arguments, identities, where runs begin, where pieces fit, and what is kept of it."""

from __future__ import annotations

import itertools
import tracemalloc
from datetime import date, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker import Dataset, Entry, FieldError, Loader, NGram, Pack, SourceError, Spec
from stoker.testing import MemoryStorage, write_parquet

NAN = float("nan")


def loader_of(columns, *, row_group_size=None, num_rows=None, **options):
    """Return a loader of the rows of one file, of which `id` and what is packed are delivered."""
    num_rows = len(next(iter(columns.values()))) if num_rows is None else num_rows
    table = pa.table({**columns, "id": np.arange(num_rows)})
    storage = MemoryStorage()
    write_parquet(storage, table, url="a", row_group_size=row_group_size)
    wanted = ["id", "tokens"] if "tokens" in columns else ["id"]
    return Loader(Dataset("a", storage=storage, columns=wanted), **{"batch_size": 100} | options)


def units_in(columns, **options):
    """Return the ids of the rows of every group or window."""
    with loader_of(columns, **options) as loader:
        found = []
        for batch in loader:
            ids = batch["id"]
            found += np.split(ids, batch["group_offsets"][1:-1]) if "group_offsets" in batch else [*ids]
        return [ids.tolist() for ids in found]


# ---------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"group_by": "q", "weights": "w"}, ValueError, "group_by and weights each say"),
        ({"weights": "w", "sequence": NGram(length=2)}, ValueError, "weights and sequence each say"),
        ({"group_by": []}, ValueError, "group_by names no column"),
        ({"group_by": ["q", "q"]}, ValueError, "group_by names 'q' twice"),
        ({"group_by": 3}, TypeError, "group_by must be a name or a sequence of names"),
        ({"weights": ["w"]}, TypeError, "weights must be the name of a column"),
        ({"sequence": "tokens"}, TypeError, "sequence must be a stoker.NGram or a stoker.Pack"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Loader(Dataset("nowhere"), batch_size=1, **arguments)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NGram(), ValueError, "give fields at their offsets"),
        (lambda: NGram({}), ValueError, "names no offset"),
        (lambda: NGram({0: []}), ValueError, "names no field"),
        (lambda: NGram({"0": ["a"]}), TypeError, "an offset is an integer"),
        (lambda: NGram({0: ["a"], 2: ["a"]}, length=2), ValueError, "offsets 0 to 2 are 3 rows, not 2"),
        (lambda: NGram(length=0), ValueError, "length must be at least 1"),
        (lambda: NGram(length=2, stride=0), ValueError, "stride must be at least 1"),
        (lambda: NGram(length=2, stride=1, overlap=False), ValueError, "overlap=False is a stride"),
        (lambda: NGram(length=2, max_gap=1), ValueError, "name the timestamp"),
        (lambda: NGram(length=2, timestamp="t", max_gap=-1), ValueError, "must not be negative"),
        (lambda: NGram(length=2, timestamp="t", max_gap="1s"), TypeError, "a number or a timedelta"),
        (lambda: Pack("", length=8), TypeError, "name the ragged field"),
        (lambda: Pack("t", length=0), ValueError, "length must be at least 1"),
        (lambda: Pack("t", length=8, together=["t"]), ValueError, "is the field that is packed"),
        (lambda: Pack("t", length=8, together="a", per_segment="a"), ValueError, "be per_segment at once"),
        (lambda: Pack("t", length=8, pad={"x": 1}), ValueError, "pad names 'x', which is not packed"),
        (lambda: Pack("t", length=8, pad="0"), TypeError, "pad must be a number"),
        (lambda: Pack("t", length=8, together="a", end={"a": 1}), ValueError, "must say the token"),
        (lambda: Pack("t", length=8, split=1), TypeError, "split must be True or False"),
    ],
)
def test_descriptions_check_themselves(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_identity_differs_exactly_where_units_do():
    units = [
        NGram(length=2),
        NGram(length=3),
        NGram(length=2, stride=2),
        NGram(length=2, keys="a"),
        NGram(length=2, timestamp="t"),
        NGram(length=2, timestamp="t", max_gap=1),
        NGram(length=2, timestamp="t", max_gap=timedelta(seconds=1)),
        Pack("t", length=8),
        Pack("t", length=8, split=False),
        Pack("t", length=8, end=1),
        Pack("u", length=8),
    ]
    columns = [f"column_{i}" for i in range(99)]
    identities = [one.identity for one in units]
    for options in ({"group_by": "column_0"}, {"group_by": columns}, {"weights": "column_0"}):
        with loader_of({name: [1] for name in columns}, **options) as loader:
            identities.append(loader.state_dict()["units"])
    assert len(set(identities)) == len(identities)
    assert max(map(len, identities)) < 120
    assert NGram(length=2, overlap=False).identity == NGram(length=2, stride=2).identity
    assert NGram({-1: ["a"], 0: ["b"]}).identity == NGram(length=2).identity
    assert Pack("t", length=8, pad=1, per_segment="x").identity == Pack("t", length=8).identity


def test_fields_of_a_window_come_at_their_own_offsets():
    ngram = NGram({1: ["a", "c"], -2: ["a"], 0: ["b"]})
    assert ngram.length == 4
    spec = Spec(tuple(Entry(name=name, dtype=np.dtype(np.int8)) for name in "abcd"))
    assert ngram.windowed(spec) == {"a": (0, 3), "b": (2,), "c": (3,)}
    assert NGram(length=2).windowed(spec) == dict.fromkeys("abcd", (0, 1))


def test_values_that_pack_puts_in_are_completed_for_every_field():
    pack = Pack("t", length=8, together=["l", "m"], pad={"l": -100}, end=7)
    assert pack.pad == {"t": 0, "l": -100, "m": 0}
    assert pack.end == {"t": 7, "l": -100, "m": 0}


# ---------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, 1, 2, None, None, 2]),
        (pa.float64(), [0.5, NAN, NAN, None, None, 0.5]),
        (pa.float16(), [np.float16(1), np.float16(1), None, np.float16(2), np.float16(2), np.float16(2)]),
        (pa.string(), ["a", "a", "", None, None, "b"]),
        (pa.string_view(), ["a", "a", "", None, None, "b"]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "a", "b", None, None, "b"]),
        (pa.binary(2), [b"aa", b"aa", None, b"ab", b"ab", b"aa"]),
        (pa.date32(), [date(2026, 1, 1), date(2026, 1, 1), None, None, date(2026, 1, 2), date(2026, 1, 1)]),
        (pa.decimal128(5, 2), [Decimal("1.00"), Decimal("1.00"), None, None, Decimal("2.50"), Decimal("1.00")]),
        (pa.bool_(), [True, True, None, None, False, True]),
        (pa.null(), [None] * 6),
    ],
    ids=str,
)
def test_neighbours_of_any_type_are_one_group_where_their_values_are_equal(kind, values):
    runs = itertools.groupby(range(len(values)), key=lambda i: repr(values[i]))
    expected = [list(run) for _, run in runs]
    columns = {"key": pa.array(values, kind)}
    for row_group_size in (6, 2):
        assert units_in(columns, group_by="key", row_group_size=row_group_size) == expected
    with loader_of(columns, group_by="key") as loader:
        assert loader.units.num_reappearing == len(expected) - len(set(map(repr, values)))


@examples(10)
@given(keys=st.lists(st.tuples(st.sampled_from([None, 0, 1]), st.sampled_from(["", "a", None])), max_size=30))
def test_a_run_of_several_columns_ends_where_any_of_them_changes(keys):
    columns = {"a": pa.array([a for a, _ in keys], pa.int8()), "b": pa.array([b for _, b in keys], pa.string())}
    expected = [list(run) for _, run in itertools.groupby(range(len(keys)), key=lambda i: keys[i])]
    assert units_in(columns, group_by=["a", "b"]) == expected
    with loader_of(columns, group_by=["a", "b"]) as loader:
        assert loader.units.num_reappearing == len(expected) - len(set(keys))


def test_a_gap_in_time_ends_a_run_and_going_back_within_a_key_is_wrong():
    sequence = NGram(length=2, keys="k", timestamp="t", max_gap=5)
    keys = [1, 1, 1, 2, 2, 2]  # row 3 is earlier than row 2, but of another key
    assert units_in({"k": keys, "t": [0, 5, 11, 3, 3, 4]}, sequence=sequence) == [[0, 1], [3, 4], [4, 5]]
    for times in ([0, 5, 11, 3, 2, 4], [0, 5, 11, 3, None, 4], [0.0, 5.0, 11.0, 3.0, NAN, 4.0]):
        with pytest.raises(SourceError, match="row 4: 't' is earlier than in the row before, or missing"):
            loader_of({"k": keys, "t": times}, sequence=sequence)


@pytest.mark.parametrize(("kind", "gap"), [("ms", 2_000), ("us", 2_000_000), ("ns", 2_000_000_000)])
def test_a_timedelta_is_a_number_of_the_timestamps_own_steps(kind, gap):
    sequence = NGram(length=2, timestamp="t", max_gap=timedelta(seconds=2))
    times = pa.array([0, gap, 2 * gap + 1], pa.int64()).cast(pa.timestamp(kind))
    assert units_in({"t": times}, sequence=sequence) == [[0, 1]]
    days = [date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 4)]
    sequence = NGram(length=2, timestamp="t", max_gap=timedelta(days=1))
    assert units_in({"t": days}, sequence=sequence) == [[0, 1]]


@pytest.mark.parametrize(
    ("sequence", "says"),
    [
        (NGram(length=2, timestamp="word"), "'word'.*cannot be the timestamp"),
        (NGram(length=2, timestamp="n", max_gap=timedelta(seconds=1)), "timedelta.*give a number"),
    ],
)
def test_columns_that_cannot_say_the_time_are_refused_by_name(sequence, says):
    with pytest.raises(FieldError, match=says):
        loader_of({"word": ["a"], "n": [1]}, sequence=sequence)


# ---------------------------------------------------------------------- best fit


def slow_rows(lengths: list[int], length: int) -> list[list[tuple[int, int]]]:
    """Return the pieces of each row: best fit decreasing by looking at every row."""
    pieces = [(min(n - at, length), d, at) for d, n in enumerate(lengths) for at in range(0, n, length)]
    rows: list[tuple[int, int, list[tuple[int, int]]]] = []  # room, when it was last filled, pieces
    for time, (size, document, at) in enumerate(sorted(pieces, key=lambda piece: -piece[0])):
        fitting = [row for row in rows if row[0] >= size]
        if fitting:
            best = min(fitting, key=lambda row: (row[0], -row[1]))
            rows.remove(best)
        else:
            best = (length, 0, [])
        rows.append((best[0] - size, time, [*best[2], (document, at)]))
    return sorted(sorted(row[2]) for row in rows)


@examples(15)
@given(lengths=st.lists(st.integers(0, 40), max_size=60), length=st.integers(1, 17))
def test_pieces_go_where_they_leave_the_least_room(lengths, length):
    documents = pa.array([[100 * d + at for at in range(n)] for d, n in enumerate(lengths)], pa.list_(pa.int32()))
    with loader_of({"tokens": documents}, sequence=Pack("tokens", length=length, split=False)) as loader:
        batches = list(loader)
    rows = []
    for batch in batches:
        for tokens, segments in zip(batch["tokens"].tolist(), batch["segment_ids"].tolist(), strict=True):
            begins = [i for i, segment in enumerate(segments) if segment and segment not in segments[:i]]
            rows.append([divmod(tokens[i], 100) for i in begins])
    assert rows == slow_rows(lengths, length)


def test_hardly_any_room_is_left_where_documents_are_short():
    lengths = np.random.default_rng(1).integers(1, 500, 5000)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    documents = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(np.zeros(offsets[-1], np.int8)))
    with loader_of({"tokens": documents}, sequence=Pack("tokens", length=1024, split=False)) as loader:
        assert loader.units.filled == lengths.sum() / (loader.units.num_units * 1024) > 0.995


# ---------------------------------------------------------------------- kept


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_damaged_index_is_counted_again_and_says_so(tmp_path, damage, caplog):
    write_parquet(tmp_path / "a.parquet", {"key": np.arange(1000) // 7})

    def count():
        with Loader(Dataset(tmp_path / "a.parquet"), batch_size=9, group_by="key", cache=tmp_path / "cache") as loader:
            return loader.units, [batch["group_offsets"].tolist() for batch in loader]

    first = count()
    (kept,) = (tmp_path / "cache").rglob("units-*.stoker")
    whole = content = bytearray(kept.read_bytes())
    if damage == "cut":
        content = whole[: len(whole) // 2]
    elif damage == "flip":
        content = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    else:
        content = b"" if damage == "empty" else b"PAR1" * 100
    kept.write_bytes(content)
    assert count() == first
    assert "counted again" in caplog.text
    assert kept.read_bytes() == whole
    caplog.clear()
    assert count() == first
    assert not caplog.text


# ---------------------------------------------------------------------- found


def test_a_row_of_long_windows_is_found_without_the_rows_of_all_of_them():
    with loader_of({}, num_rows=40_000, batch_size=1, sequence=NGram(length=20_000)) as loader:
        tracemalloc.start()
        uses = [[use.step for use in loader.find_all("a", 0, row)] for row in (2, 39_998)]
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert uses == [[0, 1, 2], [19_999, 20_000]]
    assert peak_bytes < 50e6  # all rows of all windows would be 3 GB
