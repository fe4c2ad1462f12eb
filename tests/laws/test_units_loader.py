"""Contracts 1 to 4 where the order counts groups, windows, packed rows or draws: against a slow oracle."""

from __future__ import annotations

import tempfile
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.units_data import chunks_of, cut_rows, datasets, groups, windows, write
from tests.oracles.order_page import BLOCK_ROWS
from tests.strategies import examples

import stoker
from stoker import Ragged

KINDS = {
    "group": {"group_by": "key"},
    "groups": {"group_by": ["key", "part"]},
    "windows": {"sequence": stoker.NGram({0: ["id", "dense"], 1: ["tokens"], 2: ["id"]}, keys="key")},
    "all rows": {"sequence": stoker.NGram(length=2)},
    "timed": {"sequence": stoker.NGram(length=3, keys=["key"], timestamp="time", max_gap=2, overlap=False)},
    "packed": {"sequence": stoker.Pack("tokens", length=8, together="labels", per_segment=["id"], pad=-1)},
    "ended": {"sequence": stoker.Pack("tokens", length=5, end=7)},
    "fitted": {"sequence": stoker.Pack("tokens", length=10, split=False, together=["labels"], end={"tokens": 7})},
    "weights": {"weights": "weight"},
}
kinds = st.sampled_from(sorted(KINDS))


def units_in(kind: str, batch) -> list[tuple]:
    """Return the units of a batch, each as what tells it from all others; checks fields against each other."""
    if kind.startswith("group"):
        check_rows(batch)
        offsets = batch["group_offsets"].tolist()
        assert offsets[0] == 0
        assert offsets[-1] == len(batch["id"])
        return [tuple(batch["id"][a:b].tolist()) for a, b in pairwise(offsets)]
    if kind == "weights":
        check_rows(batch)
        return [(i,) for i in batch["id"].tolist()]
    if kind == "windows":
        assert batch["id"].shape[1:] == (2,)
        assert batch["dense"].shape[1:] == (1, 4)
        np.testing.assert_array_equal(batch["dense"][:, 0, 0], batch["id"][:, 0])
        tokens = [row for (row,) in lists_of(batch["tokens"])]
        assert len(tokens) == len(batch["id"])
        middles = [row[0] // 100 if row else None for row in tokens]
        return list(zip(batch["id"][:, 0].tolist(), middles, batch["id"][:, 1].tolist(), strict=True))
    if kind in ("all rows", "timed"):
        flat = {name: a.values if isinstance(a, Ragged) else a.reshape(-1, *a.shape[2:]) for name, a in batch.items()}
        flat.pop("sample_mask", None)
        check_rows(flat)
        return [tuple(ids) for ids in batch["id"].tolist()]
    return packed_in(batch, KINDS[kind]["sequence"])


def packed_in(batch, pack: stoker.Pack) -> list[tuple]:
    rows = []
    for name in (*pack.packed, "segment_ids", "positions"):
        assert batch[name].shape[1:] == (pack.length,)
    for b in range(len(batch["tokens"])):
        ids, positions = batch["segment_ids"][b].tolist(), batch["positions"][b].tolist()
        used = sum(map(bool, ids))
        assert ids[used:] == positions[used:] == [0] * (pack.length - used)
        assert positions[:used] == [i - ids.index(segment) for i, segment in enumerate(ids[:used])]
        for name in pack.packed:
            assert batch[name][b, used:].tolist() == [pack.pad[name]] * (pack.length - used)
        tokens = batch["tokens"][b, :used].tolist()
        if "labels" in batch:
            ends = {7} if pack.end else set()
            expected = [pack.end["labels"] if token in ends else -token for token in tokens]
            assert batch["labels"][b, :used].tolist() == expected
        if "id" in pack.per_segment:
            documents = batch["id"][b].tolist()
            assert [documents[s - 1] for s in ids[:used]] == [token // 100 for token in tokens]
        rows.append(tuple(zip(tokens, ids, positions, strict=False)))
    return rows


def check_rows(batch) -> None:
    """Check that every field of a row belongs to its id."""
    ids = batch["id"]
    np.testing.assert_array_equal(batch["dense"], np.repeat(ids, 4).reshape(-1, 4))
    assert lists_of(batch["tokens"]) == [[i * 100 + n for n in range(i * 7 % 13)] for i in ids.tolist()]


def lists_of(ragged: Ragged) -> list[list[int]]:
    return ragged.tolist()


def oracle(kind: str, chunks) -> list[tuple]:
    """Return all units in the fixed order, as `units_in` tells them."""
    if kind.startswith("group"):
        keys = KINDS[kind]["group_by"]
        return groups(chunks, [keys] if isinstance(keys, str) else keys)
    asked = KINDS[kind]["sequence"]
    if isinstance(asked, stoker.NGram):
        found = windows(chunks, keys=asked.keys, length=asked.length, stride=asked.stride, max_gap=asked.max_gap)
        if kind == "windows":
            return [(a, b if b * 7 % 13 else None, c) for a, b, c in found]
        return found
    assert asked.split
    return cut_rows(chunks, length=asked.length, end=None if asked.end is None else asked.end["tokens"])


def check_epoch(kind: str, chunks, units: list[tuple]) -> None:
    """Check that these are the units of an epoch, in any order."""
    if kind == "weights":
        rows = [row for chunk in chunks for row in chunk]
        total = sum(Fraction(row["weight"]) for row in rows)
        counts = Counter(i for (i,) in units)
        assert len(units) == len(rows)
        for row in rows:
            share = len(rows) * Fraction(row["weight"]) / total
            assert floor(share) <= counts[row["id"]] <= ceil(share)
    elif kind == "fitted":
        documents = sorted(tuple(row["tokens"]) for chunk in chunks for row in chunk)
        pieces: dict[int, list] = {}
        for row in units:
            for segment in {s for _, s, _ in row}:
                piece = [(at, token) for token, s, at in row if s == segment]
                assert len(piece) == 10 or piece[-1][1] == 7, "a piece is a whole row, or ends its document"
                name = piece[0][1] // 100 if piece[0][1] != 7 else None
                pieces.setdefault(name, []).append(piece)
        empty = pieces.pop(None, [])
        whole = [
            tuple(t for piece in sorted(found, key=lambda piece: piece[0][1]) for _, t in piece if t != 7)
            for found in pieces.values()
        ]
        told = [(),] * sum(1 for document in documents if not document)  # fmt: skip
        assert sorted([*whole, *told]) == documents
        # An end alone: of an empty document, or of one that fills its rows.
        assert len(empty) == sum(1 for document in documents if len(document) % 10 == 0)
    else:
        assert sorted(units, key=str) == sorted(oracle(kind, chunks), key=str)


def is_possible(kind: str, folder: Path) -> bool:
    import pyarrow.parquet as pq

    rows = [row for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    return kind != "weights" or any(row["weight"] for row in rows if row["keep"])


@examples(7)
@given(
    drawn=datasets,
    kind=kinds,
    batch_size=st.integers(1, 12),
    world_size=st.integers(1, 4),
    lanes=st.integers(1, 3),
    window=st.sampled_from([None, "all", 1, 2]),
    shuffle=st.booleans(),
    remainder=st.sampled_from(["keep", "drop", "pad"]),
)
def test_every_unit_comes_exactly_once_over_all_ranks(
    drawn, kind, batch_size, world_size, lanes, window, shuffle, remainder
):
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path) / "data"
        dataset = write(folder, drawn)
        if not is_possible(kind, folder):
            return
        options = {"shuffle": shuffle, "window": window, "lanes": lanes, "remainder": remainder, **KINDS[kind]}
        chunks = chunks_of(dataset, folder, options)
        steps, parts = set(), []
        for rank in range(world_size):
            with stoker.Loader(
                dataset, global_batch_size=batch_size * lanes, rank=rank, world_size=world_size,
                cache=Path(path) / "cache", num_threads=2, **options,
            ) as loader:  # fmt: skip
                batches = list(loader)
                assert len(batches) == len(loader)
                steps.add(len(batches))
                for step in range(0, len(batches), 3):
                    check_explained(loader, kind, chunks, step, batches[step])
                units = []
                for batch in batches:
                    found = units_in(kind, batch)
                    if remainder == "pad":
                        assert len(batch["sample_mask"]) == len(found)
                        found = [unit for unit, is_own in zip(found, batch["sample_mask"], strict=True) if is_own]
                    units.append(found)
                parts.append(units)
                report = loader.units
        assert len(steps) == 1
        got = [unit for step in zip(*parts, strict=True) for part in step for unit in part]
        if remainder == "drop":
            assert len(got) >= report.num_units - batch_size * lanes
        else:
            assert len(got) == report.num_units
            check_epoch(kind, chunks, got)
            if not shuffle and lanes == 1 and kind not in ("weights", "fitted"):
                assert got == oracle(kind, chunks)
            elif not shuffle and lanes == 1 and kind == "weights":
                block = {
                    row["id"]: (c, n // BLOCK_ROWS) for c, chunk in enumerate(chunks) for n, row in enumerate(chunk)
                }
                blocks = [block[i] for (i,) in got]
                assert blocks == sorted(blocks)


def check_explained(loader: stoker.Loader, kind: str, chunks, step: int, batch) -> None:
    """Check that the explanation of a step names the rows that are in its batch."""
    told = loader.explain(step, epoch=0)
    ids = [chunks[chunk][row]["id"] for chunk, row in zip(told.chunk.tolist(), told.chunk_row.tolist(), strict=True)]
    if kind == "packed":
        assert ids == batch["id"].values.tolist()
        assert told.unit.tolist() == np.repeat(np.arange(len(batch["tokens"])), np.diff(batch["id"].offsets)).tolist()
    elif kind in ("ended", "fitted"):
        shown = {t // 100 for t, s in zip(batch["tokens"].flat, batch["segment_ids"].flat, strict=True) if s and t != 7}
        assert shown <= set(ids)
    elif kind == "windows":
        assert ids[::3] == batch["id"][:, 0].tolist()
        assert ids[2::3] == batch["id"][:, 1].tolist()
    else:
        assert ids == batch["id"].reshape(-1).tolist()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_batches_across_many_windows_hold_the_units_of_an_epoch(kind, tmp_path):
    rng = np.random.default_rng(2)
    files = [([(int(rng.integers(4)), int(rng.integers(1, 9))) for _ in range(12)], 8) for _ in range(3)]
    dataset = write(tmp_path / "data", {"files": files, "chunk_size": 700, "is_filtered": False, "seed": 1})
    with stoker.Loader(dataset, batch_size=11, shuffle=True, window=1, lanes=11, **KINDS[kind]) as loader:
        chunks = chunks_of(dataset, tmp_path / "data", KINDS[kind])
        assert len(chunks) > 10
        check_epoch(kind, chunks, [unit for batch in loader for unit in units_in(kind, batch)])
