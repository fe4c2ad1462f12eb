"""What the crash tests run in processes of their own."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

import stoker
from stoker import Ragged

_MARKS = "STOKER_TEST_MARKS"


def marked(table):
    """A transform that leaves one line in a file for every table it sees; appending is atomic."""
    with Path(os.environ[_MARKS]).open("ab", buffering=0) as marks:
        marks.write(f"{table['id'][0].as_py()}\n".encode())
    ids = table["id"].to_numpy()
    words = table["history"].combine_chunks()
    return {
        "x": np.repeat(ids, 32).reshape(-1, 32),
        "history": Ragged(words.values.to_numpy(), words.offsets.to_numpy().astype(np.int64)),
    }


def dataset_of(data: Path, version: str = "1") -> stoker.Dataset:
    return stoker.Dataset(data, chunk_size=4000, transform=marked, transform_version=version)


def loader_of(data: Path, cache: Path, **options) -> stoker.Loader:
    return stoker.Loader(dataset_of(data), batch_size=20, num_threads=1, cache=cache, **options)


def fill(data: Path, cache: Path, marks: Path, *, go=None) -> str:
    """Build every chunk that is missing, and return a digest of all rows."""
    os.environ[_MARKS] = str(marks)
    if go is not None:
        go.wait()
    total = hashlib.blake2b()
    with loader_of(data, cache) as loader:
        for batch in loader:
            total.update(np.ascontiguousarray(batch["x"]).tobytes())
            total.update(np.ascontiguousarray(batch["history"].values).tobytes())
    return total.hexdigest()


def fill_and_report(connection, data, cache, marks, go):
    connection.send_bytes(fill(data, cache, marks, go=go).encode())


def fill_for_ever(data, cache, marks):
    """Build, throw chunks away, build again: until killed."""
    os.environ[_MARKS] = str(marks)
    while True:
        with loader_of(data, cache) as loader:
            for _ in loader:
                pass
        for path in sorted((cache / "chunks").iterdir())[::2]:
            path.unlink(missing_ok=True)


def train_for_ever(data, cache, marks, transform_in, limit, version):
    """Train epoch after epoch from a cache that is smaller than the data: until killed.

    With a version of its own, the data set finds nothing that others have made, and what they made may go for it.
    """
    os.environ[_MARKS] = str(marks)
    cache = stoker.Cache(cache, limit=limit)
    options = {"num_threads": 2, "window": 3, "transform_in": transform_in, "shuffle": True}
    with stoker.Loader(dataset_of(data, version), batch_size=20, cache=cache, **options) as loader:
        expected = list(range(loader.num_samples))
        while True:
            assert sorted(int(x) for batch in loader for x in batch["x"][:, 0]) == expected
