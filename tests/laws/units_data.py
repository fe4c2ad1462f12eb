"""Small data sets for the laws of units, and what an independent, slow reading of the plain table makes of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import stoker

# A file: its runs (key, length), rows of a row group.
files = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=8), st.sampled_from([1, 3, 8, 20, 1000])
    ),
    min_size=1,
    max_size=4,
)
datasets = st.fixed_dictionaries(
    {
        "files": files,
        "chunk_size": st.sampled_from([200, 700, 2000, "32MiB"]),
        "is_filtered": st.booleans(),
        "seed": st.integers(0, 9),
    }
)


def write(folder: Path, drawn) -> stoker.Dataset:
    """Write the files; every value of a row follows from its id, so that mixed-up rows show."""
    rng = np.random.default_rng(drawn["seed"])
    first = 0
    folder.mkdir(parents=True, exist_ok=True)
    for f, (runs, row_group_size) in enumerate(drawn["files"]):
        keys = [key for key, length in runs for _ in range(length)]
        ids = np.arange(first, first + len(keys))
        first += len(keys)
        table = pa.table(
            {
                "id": ids,
                "key": pa.array([None if key == 3 else f"key {key}" for key in keys], pa.string()),
                "part": pa.array([key // 2 for key in keys], pa.int8()),
                "time": np.cumsum(rng.integers(0, 4, len(keys))) + first * 10,
                "keep": rng.random(len(keys)) < 0.7,
                "weight": rng.integers(0, 4, len(keys)).astype(np.float32) * np.float32(0.5),
                "tokens": pa.array([[i * 100 + n for n in range(i * 7 % 13)] for i in ids], pa.list_(pa.int32())),
                "labels": pa.array([[-(i * 100 + n) for n in range(i * 7 % 13)] for i in ids], pa.list_(pa.int64())),
                "dense": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 4).astype(np.float32)), 4),
            }
        )
        pq.write_table(table, folder / f"{f}.parquet", row_group_size=row_group_size)
    return stoker.Dataset(
        folder,
        chunk_size=drawn["chunk_size"],
        filters=[("keep", "==", True)] if drawn["is_filtered"] else None,
        columns=["id", "dense", "tokens", "labels"],
    )


def chunks_of(dataset: stoker.Dataset, folder: Path, options) -> list[list[dict]]:
    """Return the rows of every chunk as plain Python: which chunks a loader so made has is the data set's to say."""
    order = options.get("sequence") or ("group_by" in options and stoker.NGram(length=1, keys=options["group_by"]))
    rows = []
    for file in sorted(folder.glob("*.parquet")):
        rows += pq.read_table(file).to_pylist()
    if dataset.filter is not None:
        rows = [row for row in rows if row["keep"]]
    sizes = dataset.open(runs=order.rule if order else None).num_samples.tolist()
    assert sum(sizes) == len(rows)
    ends = list(itertools.accumulate(sizes, initial=0))
    return [rows[a:b] for a, b in itertools.pairwise(ends)]


def groups(chunks, keys) -> list[tuple]:
    """Return the ids of every group."""
    return [
        tuple(row["id"] for row in run)
        for chunk in chunks
        for _, run in itertools.groupby(chunk, key=lambda row: [row[key] for key in keys])
    ]


def windows(chunks, *, keys, length, stride, max_gap) -> list[tuple]:
    """Return the ids of every window."""
    found = []
    for chunk in chunks:
        runs: list[list[dict]] = []
        for row in chunk:
            before = runs[-1][-1] if runs else None
            goes_on = (
                before is not None
                and all(row[key] == before[key] for key in keys)
                and (max_gap is None or row["time"] - before["time"] <= max_gap)
            )
            if goes_on:
                runs[-1].append(row)
            else:
                runs.append([row])
        for run in runs:
            ids = [row["id"] for row in run]
            found += [tuple(ids[s : s + length]) for s in range(0, len(ids) - length + 1, stride)]
    return found


def cut_rows(chunks, *, length, end) -> list[tuple]:
    """Return every packed row as (token, segment, position) places, where documents are cut to fill rows."""
    found = []
    for chunk in chunks:
        places = []
        for d, row in enumerate(chunk):
            document = [*row["tokens"], *([] if end is None else [end])]
            places += [(token, d, at) for at, token in enumerate(document)]
        for start in range(0, len(places), length):
            part = places[start : start + length]
            numbers = {d: n for n, d in enumerate(dict.fromkeys(d for _, d, _ in part), start=1)}
            begins = {d: i for i, (_, d, _) in reversed([*enumerate(part)])}
            found.append(tuple((token, numbers[d], i - begins[d]) for i, (token, d, _) in enumerate(part)))
    return found
