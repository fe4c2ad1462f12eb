"""Groups, windows, packed rows and draws on real files: kept, mended, reported, refused, and as tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.processes import in_threads
from tests.strategies import arrays_in

import stoker
from stoker.testing import MemoryStorage, write_parquet

NUM_ROWS = 400


def table(num_rows: int = NUM_ROWS, *, first: int = 0) -> pa.Table:
    ids = np.arange(first, first + num_rows)
    lengths = ids % 6
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.table(
        {
            "id": ids,
            "query": ids // 5,
            "time": ids * 10,
            "weight": (ids % 3).astype(np.float64),
            "tokens": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.repeat(ids, lengths))),
            "dense": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 8).astype(np.float32)), 8),
        }
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    pq.write_table(table(), write_folder(tmp_path) / "part.parquet", row_group_size=50)
    return tmp_path / "data"


def write_folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir(exist_ok=True)
    return tmp_path / "data"


def chunk_starts(loader: stoker.Loader) -> list[int]:
    """Return at which row each chunk begins, of a loader that does not shuffle."""
    chunks = np.concatenate([loader.explain(step).chunk for step in range(len(loader))])
    return [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist()]


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 255
    file.write_bytes(content)


# ---------------------------------------------------------------------- counted once, and kept


@pytest.mark.parametrize(
    "options",
    [
        {"group_by": "query"},
        {"weights": "weight"},
        {"sequence": stoker.NGram(length=3, keys="query", timestamp="time")},
        {"sequence": stoker.Pack("tokens", length=16)},
        {"sequence": stoker.Pack("tokens", length=16, split=False)},
    ],
    ids=["groups", "weights", "windows", "packed", "fitted"],
)
def test_what_was_counted_is_not_read_again(options, tmp_path):
    storage = MemoryStorage()
    for i in range(4):
        write_parquet(storage, table(100, first=i * 100), url=f"lake/{i}", row_group_size=50)
    dataset = stoker.Dataset([f"lake/{i}" for i in range(4)], storage=storage, chunk_size=4000)

    def run() -> tuple[list[bytes], str]:
        with stoker.Loader(dataset, batch_size=16, shuffle=True, cache=tmp_path / "cache", **options) as loader:
            name = "id" if "Pack" not in str(options) else "tokens"
            return [np.asarray(batch[name]).tobytes() for batch in loader], str(loader.units)

    first = run()
    storage.reset_counts()
    assert run() == first
    assert storage.num_calls == 0
    (kept,) = (tmp_path / "cache").rglob("units-*.stoker")
    damage(kept)
    assert run() == first
    assert storage.num_reads > 0  # counted again
    storage.reset_counts()
    assert run() == first
    assert storage.num_calls == 0


def test_only_the_columns_that_decide_are_read_to_count():
    storage = MemoryStorage()
    write_parquet(storage, table(20_000), url="lake/a", row_group_size=2000)
    dataset = stoker.Dataset("lake/a", storage=storage, chunk_size="200kB")
    size = storage.list("lake")[0].size_bytes

    def bytes_to_make(**options) -> int:
        storage.reset_counts()
        with stoker.Loader(dataset, batch_size=1000, num_threads=1, **options) as loader:
            assert len(chunk_starts(loader)) > 5
        return storage.bytes_read

    assert bytes_to_make(group_by="query") - bytes_to_make() < size / 4


@pytest.mark.parametrize("options", [{"group_by": "query"}, {"weights": "weight"}], ids=["groups", "weights"])
def test_ranks_that_start_together_count_once(options, tmp_path):
    storage = MemoryStorage()
    for i in range(4):
        write_parquet(storage, table(100, first=i * 100), url=f"lake/{i}", row_group_size=50)
    dataset = stoker.Dataset([f"lake/{i}" for i in range(4)], storage=storage, columns=["id"], chunk_size=1000)

    def make(cache: Path, num_ranks: int) -> int:
        storage.reset_counts()
        ranks = {"batch_size": 4, "cache": cache, "world_size": num_ranks, "num_threads": 1, **options}
        loaders = in_threads(lambda rank: stoker.Loader(dataset, rank=rank, **ranks), range(num_ranks))
        assert len({str(loader.units) for loader in loaders}) == 1
        for loader in loaders:
            loader.close()
        return storage.num_reads

    assert make(tmp_path / "four", 4) == make(tmp_path / "one", 1)


def test_groups_stay_whole_where_row_groups_allow_it_and_what_is_cut_is_reported(tmp_path):
    ids = np.arange(1000)
    data = write_folder(tmp_path)
    pq.write_table(pa.table({"id": ids, "q": ids // 7}), data / "huge.parquet", row_group_size=1000)
    pq.write_table(pa.table({"id": ids, "q": ids // 7 + 1000}), data / "small.parquet", row_group_size=10)
    dataset = stoker.Dataset(data, chunk_size=1000)
    with stoker.Loader(dataset, batch_size=10, group_by="q") as loader:
        starts = chunk_starts(loader)
        assert len(starts) > 10
        keys = np.concatenate([ids // 7, ids // 7 + 1000])
        cut = [start for start in starts[1:] if keys[start] == keys[start - 1]]
        assert loader.units.num_cut == len(cut) <= 3  # row groups of 10 rows and groups of 7 meet at every 70
        assert loader.units.num_units == 2 * 143 + len(cut)
        assert sum(len(batch["group_offsets"]) - 1 for batch in loader) == loader.units.num_units
    # Without asking for groups, most fragments end within one.
    with stoker.Loader(dataset, batch_size=10) as loader:
        assert sum(keys[start] == keys[start - 1] for start in chunk_starts(loader)[1:]) > 10


def test_a_key_that_comes_again_is_another_group_and_is_reported(tmp_path):
    pq.write_table(pa.table({"id": np.arange(6), "q": [1, 1, 2, 1, 1, 2]}), write_folder(tmp_path) / "a.parquet")
    with stoker.Loader(stoker.Dataset(tmp_path / "data"), batch_size=2, group_by="q") as loader:
        assert loader.units.num_units == 4
        assert loader.units.num_reappearing == 2
        assert "2 runs whose key was there before" in str(loader.units)


def test_windows_that_would_cross_a_chunk_are_counted(tmp_path):
    pq.write_table(
        pa.table({"id": np.arange(100), "k": np.zeros(100, np.int8)}), write_folder(tmp_path) / "a.parquet",
        row_group_size=25,
    )  # fmt: skip
    dataset = stoker.Dataset(tmp_path / "data", chunk_size=120)
    with stoker.Loader(dataset, batch_size=8, sequence=stoker.NGram(length=4, keys="k")) as loader:
        report, num_chunks = loader.units, len(chunk_starts(loader))
        assert num_chunks > 3
        assert report.num_units + report.num_lost == 97
        assert report.num_lost == 3 * report.num_cut == 3 * (num_chunks - 1)


def double(rows: pa.Table) -> dict[str, object]:
    """A transform that makes tokens: as many as twice the row's id says, modulo 8."""
    lengths = np.asarray(rows["id"]) * 2 % 8
    values = np.repeat(np.asarray(rows["id"]), lengths)
    return {"id": np.asarray(rows["id"]), "made": stoker.Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))}


@pytest.mark.parametrize("limit", [None, "40kB"])
def test_tokens_that_a_transform_makes_are_counted_from_its_chunks(folder, tmp_path, limit):
    dataset = stoker.Dataset(folder, transform=double, transform_version="1", chunk_size=3000)
    for _ in range(2):
        with stoker.Loader(
            dataset, batch_size=4, shuffle=True, cache=tmp_path / "cache", cache_limit=limit,
            sequence=stoker.Pack("made", length=16, per_segment="id"),
        ) as loader:  # fmt: skip
            tokens = np.concatenate([batch["made"][batch["segment_ids"] > 0] for batch in loader])
        expected = np.repeat(np.arange(NUM_ROWS), np.arange(NUM_ROWS) * 2 % 8)
        assert sorted(tokens.tolist()) == expected.tolist()


def test_processes_that_transform_cut_the_same_fragments(folder, tmp_path):
    dataset = stoker.Dataset(folder, transform=double, transform_version="1", chunk_size=3000)
    with stoker.Loader(
        dataset, batch_size=4, group_by="query", cache=tmp_path / "cache", transform_in="processes", num_threads=1
    ) as loader:
        ids = np.concatenate([batch["id"] for batch in loader])
    assert ids.tolist() == list(range(NUM_ROWS))


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"group_by": "nothing"}, stoker.FieldError, "no file has the column 'nothing'"),
        ({"group_by": "tokens"}, stoker.FieldError, "'tokens'.*cannot be a key"),
        ({"weights": "tokens"}, stoker.FieldError, "'tokens'.*cannot be the weights"),
        ({"weights": "nothing"}, stoker.FieldError, "no file has the column 'nothing'"),
        ({"sequence": stoker.NGram({0: ["nothing"]})}, stoker.FieldError, "there is no field 'nothing'"),
        ({"sequence": stoker.NGram(length=2, timestamp="tokens")}, stoker.FieldError, "cannot be the timestamp"),
        ({"sequence": stoker.Pack("nothing", length=8)}, stoker.FieldError, "there is no field 'nothing'"),
        ({"sequence": stoker.Pack("dense", length=8)}, stoker.FieldError, "dense.*not one list a row"),
        ({"sequence": stoker.Pack("tokens", length=8, together="dense")}, stoker.FieldError, "not one list a row"),
        ({"sequence": stoker.Pack("tokens", length=8, pad=0.5)}, ValueError, "pad 0.5 is no int64"),
        ({"group_by": "query", "weights": "weight"}, ValueError, "give one of them"),
    ],
)
def test_what_cannot_be_counted_is_refused_when_the_loader_is_made(folder, options, error, message):
    with pytest.raises(error, match=message):
        stoker.Loader(stoker.Dataset(folder), batch_size=4, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("group_offsets", {"group_by": "id"}),
        ("sample_mask", {"group_by": "id", "remainder": "pad"}),
        ("sample_mask", {"remainder": "pad"}),
    ],
)
def test_a_field_with_a_name_that_batches_need_is_refused(tmp_path, name, options):
    pq.write_table(pa.table({"id": [1], name: [1]}), write_folder(tmp_path) / "a.parquet")
    with pytest.raises(ValueError, match=f"batches get an array '{name}' of their own|array '{name}' of their own"):
        stoker.Loader(stoker.Dataset(tmp_path / "data"), batch_size=1, **options)


@pytest.mark.parametrize(("value", "shown"), [(-1.0, "-1.0"), (float("nan"), "nan"), (None, "None")])
def test_a_weight_that_makes_no_sense_names_file_and_row_group(tmp_path, value, shown):
    weights = pa.array([1.0] * 70 + [value] + [1.0] * 29, pa.float64())
    data = write_folder(tmp_path)
    pq.write_table(pa.table({"id": np.arange(100), "w": weights}), data / "a.parquet", row_group_size=20)
    with pytest.raises(stoker.SourceError, match=rf"a\.parquet row group 3, row 10: the weight 'w' is {shown}"):
        stoker.Loader(stoker.Dataset(data, columns=["id"]), batch_size=4, weights="w")
    # Rows that a filter leaves out may have any weight.
    with stoker.Loader(
        stoker.Dataset(data, columns=["id"], filters=[("id", "<", 70)]), batch_size=4, weights="w"
    ) as loader:
        assert loader.num_samples == 70


def test_weights_that_are_all_zero_are_an_error(tmp_path):
    pq.write_table(pa.table({"id": np.arange(9), "w": np.zeros(9)}), write_folder(tmp_path) / "a.parquet")
    with pytest.raises(stoker.SourceError, match=r"'w' is 0 in every one of 9 rows.*a\.parquet row group 0"):
        stoker.Loader(stoker.Dataset(tmp_path / "data"), batch_size=4, weights="w")


def test_time_that_goes_back_within_a_key_names_the_row(tmp_path):
    time = np.arange(100)
    time[61] = 3
    pq.write_table(
        pa.table({"k": np.arange(100) // 20, "t": time}), write_folder(tmp_path) / "a.parquet", row_group_size=20
    )
    ngram = stoker.NGram(length=2, keys="k", timestamp="t")
    with pytest.raises(stoker.SourceError, match=r"a\.parquet row group 3, row 1: 't' is earlier"):
        stoker.Loader(stoker.Dataset(tmp_path / "data"), batch_size=4, sequence=ngram)


def test_fields_packed_together_must_have_as_many_values(tmp_path):
    lists = [[1, 2], [3], [4, 5, 6]]
    other = [[1, 2], [3, 9], [4, 5, 6]]
    pq.write_table(pa.table({"tokens": lists, "labels": other}), write_folder(tmp_path) / "a.parquet")
    pack = stoker.Pack("tokens", length=4, together="labels")
    with (
        stoker.Loader(stoker.Dataset(tmp_path / "data"), batch_size=4, sequence=pack) as loader,
        pytest.raises(stoker.FieldMismatchError, match=r"row 1 has 2 values of 'labels' but 1 of 'tokens'"),
    ):
        list(loader)


@pytest.mark.parametrize("prefetch", [0, 40])
def test_a_document_that_cannot_be_packed_fails_the_step_that_needed_it_and_no_other(tmp_path, prefetch):
    tokens = [[n] * 4 for n in range(200)]
    labels = [one if n != 117 else one[:3] for n, one in enumerate(tokens)]
    pq.write_table(pa.table({"tokens": tokens, "labels": labels}), write_folder(tmp_path) / "a.parquet")
    pack = stoker.Pack("tokens", length=4, together="labels")
    with stoker.Loader(
        stoker.Dataset(tmp_path / "data"), batch_size=2, shuffle=True, sequence=pack, prefetch=prefetch, num_threads=2
    ) as loader:
        step = loader.find("a.parquet", 0, 117).step
        assert step > 2
        batches = iter(loader)
        got = [next(batches) for _ in range(step)]
        assert all((batch["tokens"] == batch["labels"]).all() for batch in got)
        with pytest.raises(stoker.FieldMismatchError, match=r"row 117 has 3 values of 'labels'") as caught:
            next(batches)
        assert f"needed by step {step} " in " ".join(caught.value.__notes__)


# ---------------------------------------------------------------------- resumed, explained, found


def test_a_position_of_other_units_is_another_order(folder):
    dataset = stoker.Dataset(folder)
    with stoker.Loader(dataset, batch_size=4, sequence=stoker.NGram(length=2)) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 1000
    with (
        stoker.Loader(dataset, batch_size=4, sequence=stoker.NGram(length=3)) as loader,
        pytest.raises(stoker.ResumeError, match=r"what is counted was 'windows of 2 rows .*' and is 'windows of 3"),
    ):
        loader.load_state_dict(state)


def test_a_row_is_found_in_the_step_of_its_group(folder):
    with stoker.Loader(stoker.Dataset(folder, chunk_size=3000), batch_size=3, shuffle=True, group_by="query") as loader:
        batches = list(loader)
        for i in range(0, NUM_ROWS, 37):
            use = loader.find("part.parquet", i // 50, i % 50, epoch=0)
            assert i in batches[use.step]["id"]
        told = loader.explain(2, epoch=0)
        assert [place.row_group * 50 + place.row for place in told] == batches[2]["id"].tolist()
        assert told.unit.tolist() == np.repeat([0, 1, 2], np.diff(batches[2]["group_offsets"])).tolist()


@pytest.mark.parametrize(
    "options",
    [{"weights": "weight"}, {"sequence": stoker.NGram(length=2)}, {"sequence": stoker.Pack("tokens", length=9)}],
)
def test_a_row_that_may_be_used_often_is_found_wherever_it_is_used(folder, options):
    with stoker.Loader(stoker.Dataset(folder), batch_size=4, shuffle=True, **options) as loader:
        used: dict[tuple, list[int]] = {}
        for step in range(len(loader)):
            told = loader.explain(step)
            stands = {(*place[1:3], unit) for place, unit in zip(told, told.unit.tolist(), strict=True)}
            for row_group, row, _ in stands:
                used.setdefault((row_group, row), []).append(step)
        assert max(map(len, used.values())) > 1
        for i in range(0, NUM_ROWS, 7):
            uses = loader.find_all("part.parquet", i // 50, i % 50)
            assert [use.step for use in uses] == used.get((i // 50, i % 50), [None])
            assert loader.find("part.parquet", i // 50, i % 50) == uses[0]


def test_weights_are_drawn_anew_in_every_epoch_and_epochs_are_of_one_length(folder):
    with stoker.Loader(stoker.Dataset(folder), batch_size=64, shuffle=True, weights="weight") as loader:
        epochs = [np.concatenate([batch["id"] for batch in loader]) for _ in range(3)]
        assert {len(epoch) for epoch in epochs} == {NUM_ROWS}
        assert all((epoch % 3 > 0).all() for epoch in epochs)
        assert not np.array_equal(np.sort(epochs[0]), np.sort(epochs[1]))
        for step in (0, 5):
            told = loader.explain(step, epoch=1)
            ids = [place.row_group * 50 + place.row for place in told]
            assert ids == epochs[1][step * 64 : (step + 1) * 64].tolist()


# ---------------------------------------------------------------------- tensors

torch = pytest.importorskip("torch")


def numpy_of(field):
    return field.map(numpy_of) if isinstance(field, stoker.Ragged) else field.numpy()


@pytest.mark.torch
@pytest.mark.parametrize("num_workers", [None, 0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"group_by": "query", "remainder": "pad"},
        {"weights": "weight"},
        {"sequence": stoker.NGram({0: ["id", "tokens", "dense"], 2: ["id"]}, keys="query")},
        {"sequence": stoker.NGram({0: ["dense"], 1: ["dense", "id"], 3: ["dense"]}, keys="query")},
        {"sequence": stoker.Pack("tokens", length=16, per_segment=["id", "dense"])},
    ],
    ids=["groups", "weights", "windows", "uneven", "packed"],
)
def test_tensors_are_the_arrays(folder, tmp_path, options, num_workers):
    from torch.utils.data import DataLoader

    from stoker.torch import TorchDataset, TorchLoader

    options = {"batch_size": 7, "shuffle": True, "cache": tmp_path / "cache", "num_threads": 1, **options}
    dataset = stoker.Dataset(folder, chunk_size=6000)
    with stoker.Loader(dataset, **options) as loader:
        expected = list(loader)
    if num_workers is None:
        with TorchLoader(dataset, **options) as loader:
            batches = list(loader)
    else:
        with TorchDataset(dataset, **options) as batches_of:
            batches = list(DataLoader(batches_of, batch_size=None, num_workers=num_workers))
    assert len(batches) == len(expected)
    for batch, arrays in zip(batches, expected, strict=True):
        assert list(batch) == list(arrays)
        for name, array in arrays.items():
            field = numpy_of(batch[name])
            for one, other in zip(*map(arrays_in, (field, array)), strict=True):
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype


def test_groups_that_are_torn_are_told_by_a_warning(tmp_path, caplog):
    rows = {
        "id": np.arange(60),
        "mixed": np.arange(60) % 2,
        "sorted": np.arange(60) // 7,
        "whole": np.arange(60) // 5,
    }
    pq.write_table(pa.table(rows), write_folder(tmp_path) / "a.parquet", row_group_size=10)
    dataset = stoker.Dataset(tmp_path / "data", chunk_size=250)

    def warnings_of(**options) -> list[str]:
        caplog.clear()
        with stoker.Loader(dataset, batch_size=2, **options):
            return [record.getMessage() for record in caplog.records if record.name == "stoker"]

    assert warnings_of(group_by="whole") == warnings_of() == []
    (message,) = warnings_of(group_by="mixed")
    assert "runs whose key was there before" in message
    assert "sort the files by mixed to have them together" in message
    (message,) = warnings_of(group_by="sorted")
    assert "runs cut by chunks' borders: the parts of these groups are groups of their own" in message
    (message,) = warnings_of(sequence=stoker.NGram(length=1, keys="mixed"))
    assert "sort the files by mixed to have them together" in message
    assert warnings_of(sequence=stoker.NGram(length=2, keys="whole", timestamp="id", max_gap=1)) == []
