"""The promise: a loader delivers the bytes that it delivered when `tests/golden/batch_digests.json` was made.

Every configuration is one kind of loader over data that follow from integers alone. Its record in the file has, for
every pass over the loader, the number of steps and a hash of each field and of `explain`: a field that differs is
named. Where an order, a format or a field got a new meaning, the record says in `since` which commit made it, and why:

    PYTHONPATH=src python tests/laws/test_batch_digests.py "COMMIT: why" [NAME ...]
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker import Dataset, Field, Loader, Mixture, NGram, Pack

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "batch_digests.json"

# ---------------------------------------------------------------------------------------------------- data


def bits(size: int, salt: int) -> np.ndarray:
    """Return uint64 that look random and follow from their places: splitmix64."""
    with np.errstate(over="ignore"):
        x = (np.arange(1, size + 1, dtype=np.uint64) + np.uint64(salt << 32)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def below(size: int, salt: int, most: int) -> np.ndarray:
    return (bits(size, salt) % np.uint64(most)).astype(np.int64)


def floats(size: int, salt: int, dtype: str = "float32") -> np.ndarray:
    return (below(size, salt, 20_001) - 10_000).astype(dtype) / np.array(64, dtype)


def lists(values: pa.Array, lengths: np.ndarray, *, nulls: np.ndarray | None = None) -> pa.Array:
    offsets = pa.array(
        np.append(0, np.cumsum(lengths)).astype(np.int32), mask=None if nulls is None else np.append(nulls, False)
    )
    return pa.ListArray.from_arrays(offsets, values)


def write(folder: Path, columns: dict, *, num_files: int = 11, row_group_size: int = 25, **options) -> Path:
    """Write the table in files of about as many rows; row groups do not divide them."""
    table = pa.table(columns)
    folder.mkdir(parents=True)
    size = -(-table.num_rows // num_files)
    for f in range(num_files):
        part = table.slice(f * size, size)
        pq.write_table(part, folder / f"part-{f:02}.parquet", row_group_size=row_group_size, **options)
    return folder


def dense(size: int = 700, width: int = 12, salt: int = 1) -> dict:
    columns: dict = {f"dense_{k}": floats(size, salt + k) for k in range(width)}
    return columns | {"label": below(size, salt + 99, 2).astype(np.int8), "id": np.arange(size)}


def many_dtypes(size: int = 600) -> dict:
    columns: dict = {"bool": below(size, 1, 2).astype(bool)}
    for k, name in enumerate(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")):
        columns[name] = bits(size, 10 + k).astype(name)
    for k, name in enumerate(("float32", "float64")):
        columns[name] = floats(size, 30 + k, name)
    columns["half"] = pa.array(floats(size, 33).astype(np.float16))
    columns["day"] = pa.array(below(size, 34, 30_000).astype(np.int32), pa.date32())
    columns["moment"] = pa.array(below(size, 35, 2**40), pa.timestamp("us"))
    columns["price"] = pa.array(below(size, 36, 10**6)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2))
    columns["row"] = pa.FixedSizeListArray.from_arrays(pa.array(floats(size * 5, 37)), 5)
    return columns


def texts(size: int = 500) -> dict:
    words = np.array([f"{'é' * (k % 3)}word {k * 7919 % 1009}" for k in range(40)])
    chosen = words[below(size, 1, 40)]
    return {
        "id": np.arange(size),
        "word": pa.array(chosen.tolist()),
        "kind": pa.array(words[below(size, 2, 5)].tolist()).dictionary_encode(),
        "code": pa.array([f"{value:x}" for value in below(size, 3, 10**6)]),
        "raw": pa.array([bytes([value % 251] * (value % 9)) for value in below(size, 4, 10**6)], pa.binary()),
        "tags": lists(pa.array(words[below(int(below(size, 5, 4).sum()), 6, 40)].tolist()), below(size, 5, 4)),
    }


TEXT_FIELDS = {
    "word": Field("int32", vocabulary=[f"word {k}" for k in range(0, 1009, 2)], unknown=-1),
    "kind": Field("int64", hash_buckets=1000),
    "code": Field(num_bytes=6),
    "raw": Field(num_bytes=9),
    "tags": Field("int32", hash_buckets=97),
}


def tokens(size: int = 500, most: int = 19, salt: int = 1) -> dict:
    """Documents of 0 to `most - 1` tokens, and a label of each: a list beside a record below 64 bytes."""
    lengths = below(size, salt, most)
    total = int(lengths.sum())
    return {
        "tokens": lists(pa.array(below(total, salt + 1, 50_000).astype(np.int32)), lengths),
        "marks": lists(pa.array(below(total, salt + 2, 2).astype(np.int8)), lengths),
        "label": below(size, salt + 3, 9).astype(np.int16),
        "id": np.arange(size),
    }


def nested(size: int = 300) -> dict:
    outer = below(size, 1, 5)
    inner = below(int(outer.sum()), 2, 6)
    values = pa.array(below(int(inner.sum()), 3, 1000))
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(floats(2 * int(outer.sum()), 4)), 2)
    return {"id": np.arange(size), "deep": lists(lists(values, inner), outer), "pairs": lists(pairs, outer)}


def holes(size: int = 500) -> dict:
    missing = below(size, 1, 4) == 0
    lengths = np.where(missing, 0, below(size, 2, 6))
    values = pa.array(floats(int(lengths.sum()), 3))
    whole = {f"x_{k}": pa.array(floats(size, 10 + k), mask=below(size, 20 + k, 3) == 0) for k in range(3)}
    return whole | {
        "count": pa.array(below(size, 4, 100), mask=missing),
        "flag": pa.array(below(size, 5, 2).astype(bool), mask=below(size, 6, 2) == 0),
        "all_there": pa.array(below(size, 7, 100).astype(np.int32)),
        "word": pa.array([None if k == 0 else f"w{k}" for k in below(size, 8, 9).tolist()]),
        "list": lists(values, lengths, nulls=missing),
    }


HOLE_FIELDS = {
    "x": Field("float32", columns="x_*", fill=-1.0, mask=True),
    "count": Field(fill=7, mask=True),
    "flag": Field(mask=True),
    "word": Field("int32", hash_buckets=50, fill="none"),
    "list": Field(fill=0),
}


def sessions(size: int = 600) -> dict:
    """Runs of 1 to 8 rows of one key, with features that belong to the key."""
    lengths = below(size, 1, 8) + 1
    run = np.repeat(np.arange(size), lengths)[:size]
    key = (run * 7919) % 100_003
    columns = {f"q_{k}": (key * (k + 3) % 257).astype(np.float32) for k in range(5)}
    history = lists(pa.array(np.repeat(key, key % 6).astype(np.int32)), key % 6)
    return columns | {
        "query": key,
        "history": history,
        "time": np.arange(size) * 10 + np.cumsum(below(size, 2, 25) // 20) * 100,
        "place": below(size, 3, 12).astype(np.int32),
        "click": below(size, 4, 2).astype(np.int8),
        "weight": (below(size, 5, 9) / np.float64(8)).astype(np.float32),
    }


ENCODED = {
    "plain": "PLAIN",
    "delta": "DELTA_BINARY_PACKED",
    "split": "BYTE_STREAM_SPLIT",
    "text": "DELTA_BYTE_ARRAY",
    "length": "DELTA_LENGTH_BYTE_ARRAY",
    "flag": "RLE",
}


def encoded(size: int = 900) -> dict:
    return {
        "plain": pa.array(bits(size, 1).astype(np.int64), mask=below(size, 2, 5) == 0),
        "delta": below(size, 3, 10**9),
        "split": floats(size, 4, "float64"),
        "text": pa.array([f"common/{k}" for k in below(size, 5, 500).tolist()]),
        "length": pa.array([f"{k:b}" for k in below(size, 6, 500).tolist()]),
        "flag": below(size, 7, 2).astype(bool),
    }


# ------------------------------------------------------------------------------------------- configurations

Passes = Iterator[tuple[str, Loader, Iterator]]
CONFIGURATIONS: dict[str, Callable[[Path], Passes]] = {}


def configuration(function: Callable[[Path], Passes]) -> Callable[[Path], Passes]:
    CONFIGURATIONS[function.__name__] = function
    return function


def passes(dataset: Dataset | Mixture, *, epochs: int = 1, **options) -> Passes:
    """Yield each epoch of one loader."""
    options = {"batch_size": 37, "shuffle": True, "seed": 5, "window": 3, "num_threads": 1, **options}
    with Loader(dataset, **options) as loader:
        for epoch in range(epochs):
            yield f"epoch {epoch}", loader, iter(loader)


def each_rank(dataset: Dataset | Mixture, world_size: int, **options) -> Passes:
    for rank in range(world_size):
        for name, loader, batches in passes(dataset, rank=rank, world_size=world_size, **options):
            yield f"rank {rank}, {name}", loader, batches


STACKED = {"dense": Field("float32", columns="dense_*")}


@configuration
def stacked(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", dense()), fields=STACKED)
    yield from passes(dataset, epochs=2, cache=folder / "cache")
    yield from passes(dataset, cache=folder / "cache", num_threads=2, seed=6)


@configuration
def in_order(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", dense()), fields=STACKED)
    yield from passes(dataset, epochs=2, shuffle=False, window=None, batch_size=64)
    yield from each_rank(dataset, 2, shuffle=False, window=None, batch_size=64, remainder="drop")


@configuration
def several_row_groups_a_chunk(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", dense(2000, 20), compression="snappy"), fields=STACKED)
    yield from passes(dataset, epochs=2, window=None, batch_size=100, num_threads=2)
    yield from passes(dataset, window="all", batch_size=100, prefetch=0)


@configuration
def parts_of_row_groups(folder: Path) -> Passes:
    data = write(folder / "data", dense() | tokens(700), num_files=2, row_group_size=300)
    for chunk_size in ("1KiB", "4KiB"):
        yield from passes(Dataset(data, fields=STACKED, chunk_size=chunk_size), num_threads=2)


@configuration
def named_columns(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", many_dtypes()))
    yield from passes(dataset, epochs=2, cache=folder / "cache", num_threads=2)


@configuration
def wide(folder: Path) -> Passes:
    columns = {f"c{k:03}": (floats(300, k) if k % 3 else below(300, k, 1000)) for k in range(200)}
    dataset = Dataset(write(folder / "data", columns))
    yield from passes(dataset, epochs=2, batch_size=50)


@configuration
def narrow(folder: Path) -> Passes:
    columns = {"x": floats(3000, 1), "y": below(3000, 2, 100).astype(np.uint8)}
    dataset = Dataset(write(folder / "data", columns, row_group_size=250))
    yield from passes(dataset, epochs=2, batch_size=256)
    yield from passes(Dataset(folder / "data", columns=["y"]), batch_size=256)


@configuration
def strings(folder: Path) -> Passes:
    yield from passes(Dataset(write(folder / "data", texts()), fields=TEXT_FIELDS), epochs=2)


@configuration
def lists_beside_a_label(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", tokens(), compression="zstd"))
    yield from passes(dataset, epochs=2, cache=folder / "cache", num_threads=2)
    yield from passes(Dataset(folder / "data", columns=["tokens"]))


@configuration
def lists_beside_a_wide_record(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", dense(500, 30) | tokens(500)), fields=STACKED)
    yield from passes(dataset, epochs=2)


@configuration
def lists_of_lists(folder: Path) -> Passes:
    yield from passes(Dataset(write(folder / "data", nested())), epochs=2, batch_size=23)


@configuration
def nulls(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", holes(), data_page_size=500), fields=HOLE_FIELDS)
    yield from passes(dataset, epochs=2)


@configuration
def every_encoding(folder: Path) -> Passes:
    fields = {"plain": Field(fill=0), "text": Field(num_bytes=12), "length": Field(hash_buckets=64)}
    for version, compression in (("1.0", "none"), ("2.0", "snappy")):
        data = write(
            folder / version,
            encoded(),
            row_group_size=60,
            use_dictionary=False,
            column_encoding=ENCODED,
            data_page_version=version,
            compression=compression,
            data_page_size=300,
        )
        yield from passes(Dataset(data, fields=fields))


@configuration
def every_dictionary(folder: Path) -> Passes:
    data = write(
        folder / "data", encoded() | texts(900), data_page_version="2.0", write_batch_size=32, data_page_size=90
    )
    yield from passes(
        Dataset(
            data,
            fields={
                **TEXT_FIELDS,
                "plain": Field(fill=0),
                "text": Field(num_bytes=12),
                "length": Field(hash_buckets=64),
            },
        )
    )


@configuration
def transformed(folder: Path) -> Passes:
    def transform(table: pa.Table) -> dict:
        x, y = table["dense_0"].to_numpy(), table["dense_1"].to_numpy()
        return {"both": np.stack([x, y], axis=1), "sum": x + y, "label": table["label"].to_numpy()}

    data = write(folder / "data", dense())
    yield from passes(Dataset(data, transform=transform, transform_version="1"), epochs=2)


@configuration
def augmented(folder: Path) -> Passes:
    def augment(batch: dict, generator) -> dict:
        return batch | {"noise": generator.integers(0, 1000, len(batch["id"]))}

    dataset = Dataset(write(folder / "data", dense()), fields=STACKED)
    yield from passes(dataset, augment=augment, epochs=2)


@configuration
def filtered(folder: Path) -> Passes:
    data = write(folder / "data", dense(900))
    for filters in ([("label", "==", 1)], [("id", ">", 100), ("dense_3", "<", 40.0)], [("id", ">=", 240)]):
        yield from passes(Dataset(data, filters=filters, fields=STACKED))
    yield from each_rank(Dataset(data, filters=[("label", "==", 1)], columns=["id"]), 2)


@configuration
def several_ranks(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", dense() | tokens(700)), fields=STACKED)
    for remainder in ("keep", "drop", "pad"):
        yield from each_rank(dataset, 3, remainder=remainder)


@configuration
def lanes(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", dense(1100)), fields=STACKED)
    yield from each_rank(dataset, 2, lanes=2, batch_size=32, remainder="pad", epochs=2)
    yield from each_rank(dataset, 1, lanes=4, global_batch_size=64, batch_size=None)


@configuration
def tiny_windows(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", dense(400, 3) | tokens(400), num_files=40, row_group_size=7))
    yield from passes(dataset, window=1, batch_size=50)
    yield from passes(dataset, window=2, batch_size=3)


@configuration
def resumed(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", dense() | tokens(700)), fields=STACKED)
    options = {"batch_size": 30, "shuffle": True, "seed": 5, "window": 3, "num_threads": 1}
    with Loader(dataset, **options) as loader:
        batches = iter(loader)
        for _ in range(7):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
    for rank in range(2):
        with Loader(dataset, **{**options, "batch_size": 21}, rank=rank, world_size=2) as loader:
            loader.load_state_dict(state)
            yield f"rank {rank}, the rest", loader, iter(loader)
            yield f"rank {rank}, next epoch", loader, iter(loader)


@configuration
def groups(folder: Path) -> Passes:
    data = write(folder / "data", sessions())
    yield from passes(Dataset(data), group_by="query", batch_size=9, epochs=2)
    yield from each_rank(Dataset(data, columns=["place", "click"]), 2, group_by="query", batch_size=9)


@configuration
def windows_of_rows(folder: Path) -> Passes:
    data = write(folder / "data", sessions())
    some = NGram({-1: ["place"], 0: ["place", "click"], 1: ["click", "q_1"]}, keys="query")
    yield from passes(Dataset(data), sequence=some, epochs=2)
    gaps = NGram(length=3, keys=["query"], timestamp="time", max_gap=50, stride=2)
    yield from passes(Dataset(data, columns=["place", "weight"]), sequence=gaps)
    yield from each_rank(Dataset(data, columns=["place"]), 2, sequence=NGram(length=4, overlap=False))


@configuration
def windows_of_lists(folder: Path) -> Passes:
    data = write(folder / "data", sessions() | nested(600))
    yield from passes(Dataset(data), sequence=NGram(length=3, keys="query"), epochs=2)
    yield from passes(Dataset(data), sequence=NGram({0: ["history", "click"], 2: ["history"]}, stride=2))


@configuration
def packed_by_cutting(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", tokens(900)))
    cut = Pack("tokens", length=32, together=["marks"], per_segment=["label"], pad=-1, end=99)
    yield from passes(dataset, sequence=cut, batch_size=10, epochs=2)
    shard = stoker.SequenceShard(rank=1, world_size=2, fields=("tokens",), layout="zigzag")
    yield from passes(dataset, sequence=Pack("tokens", length=16), sequence_shard=shard)


@configuration
def packed_with_lengths(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", tokens(900)))
    for split in (True, False):
        yield from passes(dataset, sequence=Pack("tokens", length=32, split=split, cu_seqlens=True), batch_size=10)


@configuration
def packed_by_best_fit(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", tokens(900)))
    fit = Pack("tokens", length=24, together=["marks"], split=False, pad={"tokens": 7}, per_segment=["id"])
    yield from passes(dataset, sequence=fit, batch_size=10, epochs=2)
    yield from each_rank(dataset, 2, sequence=Pack("tokens", length=10, split=False), batch_size=10)


@configuration
def weighted_draws(folder: Path) -> Passes:
    dataset = Dataset(write(folder / "data", sessions()))
    yield from passes(dataset, weights="weight", epochs=2)
    yield from each_rank(dataset, 2, weights="weight", remainder="pad")


def three(folder: Path) -> dict[str, Dataset]:
    sizes = {"web": 700, "code": 500, "math": 150}
    return {
        name: Dataset(write(folder / name, dense(size, 4, salt) | tokens(size, salt=salt)), fields=STACKED)
        for salt, (name, size) in enumerate(sizes.items(), 1)
    }


@configuration
def mixtures(folder: Path) -> Passes:
    data = three(folder)
    yield from passes(Mixture(data, source_field="from"), epochs=2)
    for until in ("first", "last"):
        mixture = Mixture(data, weights={"web": 0.5, "code": 0.3, "math": 0.2}, until=until)
        yield from passes(mixture, epochs=2, cache=folder / "cache", num_threads=2)
    yield from passes(Mixture(data, weights={"web": 1, "code": 2, "math": 1}), shuffle=False, window=None)


@configuration
def mixtures_in_lanes(folder: Path) -> Passes:
    mixture = Mixture(three(folder), weights={"web": 0.5, "code": 0.3, "math": 0.2}, source_field="from")
    yield from each_rank(mixture, 2, lanes=2, batch_size=20, epochs=2)


@configuration
def mixtures_of_packs(folder: Path) -> Passes:
    mixture = Mixture(three(folder), weights={"web": 2, "code": 1, "math": 1})
    yield from passes(mixture, sequence=Pack("tokens", length=32, together=["marks"]), batch_size=8)


@configuration
def deduplicated(folder: Path) -> Passes:
    shared = {"query": ["q_*", "history"]}
    dataset = Dataset(write(folder / "data", sessions()), deduplicate=shared)
    for form in ("expand", "unique"):
        yield from passes(dataset, deduplicated=form, epochs=2, cache=folder / "cache")
    yield from passes(dataset, deduplicated="unique", shuffle=False, window=None)
    yield from passes(dataset, group_by="query", batch_size=9)


@configuration
def kept_narrow(folder: Path) -> Passes:
    data = write(
        folder / "data",
        dense()
        | {"flags": pa.FixedSizeListArray.from_arrays(pa.array(below(700 * 11, 7, 2).astype(bool)), 11)}
        | tokens(700),
    )
    fields = {
        "half": Field("float32", columns="dense_?", storage_dtype="float16"),
        "brain": Field("float32", columns=["dense_10", "label"], storage_dtype="bfloat16"),
        "steps": Field("float32", columns="dense_11", storage_dtype=stoker.Scaled(-200.0, 200.0, "uint16")),
        "id": Field("int64", storage_dtype="int32"),
        "flags": Field(storage_dtype="bits"),
        "tokens": Field("int64", storage_dtype="uint16"),
    }
    yield from passes(Dataset(data, fields=fields), epochs=2, cache=folder / "cache")


# -------------------------------------------------------------------------------------------------- hashes


def digest_arrays(value) -> Iterator[bytes]:
    """Yield what a field of a batch consists of: kinds, dtypes, shapes, bytes."""
    if isinstance(value, stoker.Ragged):
        yield b"ragged"
        yield from digest_arrays(value.values)
        yield from digest_arrays(value.offsets)
    elif isinstance(value, stoker.Deduplicated):
        yield b"shared"
        yield from digest_arrays(value.values)
        yield from digest_arrays(value.index)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    else:
        yield repr(value).encode()


def digest_pass(loader: Loader, batches: Iterator) -> dict:
    """Return the hashes of one pass over a loader."""
    hashes, names, num_steps = {}, None, 0
    epoch = loader.epoch
    for batch in batches:
        num_steps += 1
        assert names in (None, list(batch)), "every batch has the same fields in the same order"
        names = list(batch)
        for name, value in batch.items():
            found = hashes.setdefault(name, hashlib.blake2b(digest_size=8))
            for part in digest_arrays(value):
                found.update(part)
    explained = hashlib.blake2b(digest_size=8)
    for step in sorted({0, 1, num_steps // 2, num_steps - 1}):
        for row in loader.explain(step, epoch=epoch):
            explained.update(repr((Path(row.url).parts[-2:], *row[1:])).encode())
    found = {"steps": num_steps, "fields": {name: one.hexdigest() for name, one in hashes.items()}}
    return found | {"explain": explained.hexdigest()}


def digest(name: str, folder: Path) -> list[dict]:
    return [{"pass": told, **digest_pass(loader, batches)} for told, loader, batches in CONFIGURATIONS[name](folder)]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_batches_are_those_of_the_reference(name, tmp_path):
    expected = json.loads(GOLDEN.read_text())["configurations"][name]["passes"]
    assert digest(name, tmp_path) == expected


def test_every_hash_has_its_configuration():
    assert json.loads(GOLDEN.read_text())["configurations"].keys() == CONFIGURATIONS.keys()


if __name__ == "__main__":
    since, *chosen = sys.argv[1:]
    known = json.loads(GOLDEN.read_text())["configurations"] if GOLDEN.exists() else {}
    for one in chosen or CONFIGURATIONS:
        with tempfile.TemporaryDirectory() as temporary:
            known[one] = {"since": since, "passes": digest(one, Path(temporary))}
    ordered = {name: known[name] for name in CONFIGURATIONS if name in known}
    GOLDEN.write_text(json.dumps({"configurations": ordered}, indent=1) + "\n")
