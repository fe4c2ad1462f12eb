"""WebDataset: tar shards on the local disk, shards and a buffer of samples shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import webdataset as wds
from columns import arrays_of, collate
from contest import HISTORIES, Settings, run

_SHUFFLE_SAMPLES = 10_000


class Way:
    """`ShardWriter` once, `WebLoader` in each epoch; a sample is one .npz-like set of .npy members."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shards: list[str] = []

    def prepare(self) -> None:
        """Write a shard for each file."""
        for number, path in enumerate(self._settings.files):
            shard = str(self._settings.cache / f"part-{number:05}.tar")
            table = pq.read_table(path)
            arrays = arrays_of(table)
            with wds.TarWriter(shard) as out:
                for i in range(len(table)):
                    fixed = {name: a[i] for name, a in arrays.items() if not isinstance(a, tuple)}
                    members = {f"{name}.npy": np.atleast_1d(value) for name, value in fixed.items()}
                    for name in HISTORIES:
                        values, offsets = arrays[name]
                        members[f"{name}.npy"] = values[offsets[i] : offsets[i + 1]]
                    out.write({"__key__": f"{number:05}{i:09}", **members})
            self._shards.append(shard)

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give one epoch."""
        samples = wds.WebDataset(self._shards, shardshuffle=len(self._shards), seed=epoch)
        batches = (
            samples.shuffle(_SHUFFLE_SAMPLES)
            .decode()
            .map(_named)
            .batched(self._settings.batch_size, collation_fn=collate)
        )
        return iter(wds.WebLoader(batches, batch_size=None, num_workers=self._settings.num_workers))


def _named(sample: dict[str, Any]) -> dict[str, Any]:
    values = {name.removesuffix(".npy"): value for name, value in sample.items() if name.endswith(".npy")}
    for name in ("query_id", "label", "country"):
        values[name] = values[name][0]
    return values


if __name__ == "__main__":
    run("WebDataset", Way, versions=["webdataset", "torch", "numpy"], note="tar shards, shuffle buffer of 10,000")
