"""The data set as arrays on disk: what hand-written loaders, and those that want random access, start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from contest import CONTEXT, DENSE, HISTORIES, IDS


def arrays_of(table: pa.Table) -> dict[str, Any]:
    """Return one array for each group of columns: matrices, the embedding, ragged (values, offsets), country codes."""
    table = table.combine_chunks()
    arrays: dict[str, Any] = {
        "query_id": table["query_id"].to_numpy(),
        "label": table["label"].to_numpy(),
        "dense": np.stack([table[name].to_numpy() for name in DENSE], axis=1),
        "ids": np.stack([table[name].to_numpy().astype(np.int64) for name in IDS], axis=1),
        "context": np.stack([table[name].to_numpy() for name in CONTEXT], axis=1),
        "query_embedding": np.asarray(table["query_embedding"].combine_chunks().flatten()).reshape(len(table), -1),
    }
    for name in HISTORIES:
        column = table[name].combine_chunks()
        arrays[name] = (np.asarray(column.flatten()), np.asarray(column.offsets) - column.offsets[0].as_py())
    country = table["country"].combine_chunks().dictionary_encode()
    arrays["country"] = np.asarray(country.indices)
    return arrays


def write_arrays(files: list[str], folder: Path) -> None:
    """Write the whole data set as .npy files; a ragged column as two."""
    countries: dict[str, int] = {}
    parts: dict[str, list[Any]] = {}
    for path in files:
        table = pq.read_table(path)
        arrays = arrays_of(table)
        words = table["country"].combine_chunks().dictionary_encode()
        codes = np.array([countries.setdefault(word, len(countries)) for word in words.dictionary.to_pylist()])
        arrays["country"] = codes[np.asarray(words.indices)]
        for name, array in arrays.items():
            parts.setdefault(name, []).append(array)
    for name, pieces in parts.items():
        if isinstance(pieces[0], tuple):
            np.save(folder / f"{name}.values.npy", np.concatenate([values for values, _ in pieces]))
            lengths = np.concatenate([np.diff(offsets) for _, offsets in pieces])
            np.save(folder / f"{name}.offsets.npy", np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
        else:
            np.save(folder / f"{name}.npy", np.concatenate(pieces))


class Arrays:
    """The files of `write_arrays`, mapped."""

    def __init__(self, folder: Path) -> None:
        load = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
        self.ragged = {name: (load.pop(f"{name}.values"), load.pop(f"{name}.offsets")) for name in HISTORIES}
        self.fixed = load
        self.num_rows = len(load["label"])

    def row(self, i: int) -> dict[str, Any]:
        """Return one sample, every column of it by its own name."""
        sample: dict[str, Any] = {name: array[i] for name, array in self.fixed.items()}
        for name, (values, offsets) in self.ragged.items():
            sample[name] = np.asarray(values[offsets[i] : offsets[i + 1]])
        return sample

    def rows(self, index: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Return a batch, gathered with plain NumPy."""
        batch: dict[str, Any] = {name: array[index] for name, array in self.fixed.items()}
        for name, (values, offsets) in self.ragged.items():
            starts = offsets[index]
            lengths = offsets[index + 1] - starts
            ends = np.cumsum(lengths)
            where = np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1])
            batch[name] = (values[where], np.concatenate([[0], ends]))
        return batch


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch of samples: stack what is fixed, join what is ragged."""
    batch: dict[str, Any] = {}
    for name in samples[0]:
        column = [sample[name] for sample in samples]
        if name in HISTORIES:
            column = [np.asarray(values) for values in column]
            offsets = np.concatenate([[0], np.cumsum([len(values) for values in column])])
            batch[name] = (np.concatenate(column), offsets)
        elif isinstance(column[0], str):
            batch[name] = column
        else:
            batch[name] = np.stack([np.asarray(value) for value in column])
    return batch
