"""MosaicML Streaming: MDS shards on the local disk, shuffled, with worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from columns import collate
from contest import CONTEXT, DENSE, HISTORIES, IDS, Settings, run
from torch.utils.data import DataLoader


def _stand_in_for_torchvision() -> None:
    # Imported for data sets of images, which are not used here; it has no build for every torch.
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        module.VisionDataset = type("VisionDataset", (), {})  # type: ignore[attr-defined]
        module.to_tensor = None  # type: ignore[attr-defined]
        sys.modules[name] = module


_stand_in_for_torchvision()

from streaming import MDSWriter, StreamingDataset  # noqa: E402


class Way:
    """`MDSWriter` once, `StreamingDataset` in a DataLoader in each epoch."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dataset: StreamingDataset | None = None

    def prepare(self) -> None:
        """Write the shards."""
        columns = {"query_id": "int64", "label": "uint8", "country": "str"}
        columns |= dict.fromkeys([*CONTEXT, *DENSE], "float32") | dict.fromkeys(IDS, "int64")
        columns |= {"query_embedding": "ndarray:float32:64"} | dict.fromkeys(HISTORIES, "ndarray:int64")
        with MDSWriter(out=str(self._settings.cache / "mds"), columns=columns, size_limit="64mb") as out:
            for path in self._settings.files:
                table = pq.read_table(path)
                names = table.column_names
                for row in zip(*(_values(table, name) for name in names), strict=True):
                    out.write(dict(zip(names, row, strict=True)))
        self._dataset = StreamingDataset(
            local=str(self._settings.cache / "mds"), shuffle=True, batch_size=self._settings.batch_size
        )

    def batches(self, epoch: int) -> Iterator[Any]:  # noqa: ARG002 (it counts its epochs itself)
        """Give one epoch."""
        return iter(
            DataLoader(
                self._dataset,
                batch_size=self._settings.batch_size,
                num_workers=self._settings.num_workers,
                collate_fn=collate,
            )
        )


def _values(table: Any, name: str) -> Any:
    column = table[name].combine_chunks()
    if name == "country":
        return column.to_pylist()
    if name == "query_embedding":
        return np.asarray(column.flatten()).reshape(len(column), -1)
    if name in HISTORIES:
        return np.split(np.asarray(column.flatten(), dtype=np.int64), np.asarray(column.offsets)[1:-1])
    return column.to_numpy().astype(np.int64) if name.startswith("id_") else column.to_numpy()


if __name__ == "__main__":
    run("MosaicML Streaming", Way, versions=["mosaicml-streaming", "torch", "numpy"], note="MDS on the local disk")
