"""LitData: optimised chunks on the local disk, shuffled, with worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
from columns import arrays_of, collate
from contest import CONTEXT, DENSE, HISTORIES, IDS, Settings, run
from litdata import StreamingDataLoader, StreamingDataset, optimize


def samples(path: str) -> Iterator[dict[str, Any]]:
    """Give the samples of a file, every column by its own name."""
    table = pq.read_table(path)
    arrays = arrays_of(table)
    countries = table["country"].to_pylist()
    for i in range(len(table)):
        sample: dict[str, Any] = {"query_id": arrays["query_id"][i], "label": arrays["label"][i]}
        for group, names in (("dense", DENSE), ("ids", IDS), ("context", CONTEXT)):
            sample.update(zip(names, arrays[group][i], strict=True))
        sample["query_embedding"] = arrays["query_embedding"][i]
        for name in HISTORIES:
            values, offsets = arrays[name]
            sample[name] = values[offsets[i] : offsets[i + 1]]
        sample["country"] = countries[i]
        yield sample


class Way:
    """`optimize` once, a StreamingDataLoader in each epoch."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def prepare(self) -> None:
        """Write the chunks."""
        optimize(
            fn=samples,
            inputs=self._settings.files,
            output_dir=str(self._settings.cache / "chunks"),
            chunk_bytes="64MB",
            num_workers=self._settings.num_workers,
        )

    def batches(self, epoch: int) -> Iterator[Any]:
        """Give one epoch."""
        dataset = StreamingDataset(str(self._settings.cache / "chunks"), shuffle=True, seed=epoch)
        return iter(
            StreamingDataLoader(
                dataset,
                batch_size=self._settings.batch_size,
                num_workers=self._settings.num_workers,
                collate_fn=collate,
            )
        )


if __name__ == "__main__":
    run("LitData", Way, versions=["litdata", "torch", "numpy"], note="optimize() to the local disk")
