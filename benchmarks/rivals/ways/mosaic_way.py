"""MosaicML Streaming: MDS shards on the local disk, shuffled, with worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from columns import arrays_of, collate
from contest import HISTORIES, Settings, run
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

    def prepare(self) -> None:
        """Write the shards."""
        columns = {"query_id": "int64", "label": "uint8", "country": "int32", "dense": "ndarray:float32:40"}
        columns |= {"ids": "ndarray:int64:20", "context": "ndarray:float32:6", "query_embedding": "ndarray:float32:64"}
        # It refuses empty arrays; a history may be empty.
        columns |= dict.fromkeys(HISTORIES, "bytes")
        with MDSWriter(out=str(self._settings.cache / "mds"), columns=columns, size_limit="64mb") as out:
            for path in self._settings.files:
                arrays = arrays_of(pq.read_table(path))
                for i in range(len(arrays["label"])):
                    sample = {name: array[i] for name, array in arrays.items() if not isinstance(array, tuple)}
                    for name in HISTORIES:
                        values, offsets = arrays[name]
                        sample[name] = values[offsets[i] : offsets[i + 1]].tobytes()
                    out.write(sample)
        dataset = StreamingDataset(
            local=str(self._settings.cache / "mds"), shuffle=True, batch_size=self._settings.batch_size
        )
        self._loader = DataLoader(
            dataset,
            batch_size=self._settings.batch_size,
            num_workers=self._settings.num_workers,
            collate_fn=_collate,
            persistent_workers=True,
        )

    def batches(self, epoch: int) -> Iterator[Any]:  # noqa: ARG002 (it counts its epochs itself)
        """Give one epoch."""
        return iter(self._loader)


def _collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    for sample in samples:
        for name in HISTORIES:
            sample[name] = np.frombuffer(sample[name], dtype=np.int64)
    return collate(samples)


if __name__ == "__main__":
    run(
        "MosaicML Streaming",
        Way,
        versions=["mosaicml-streaming", "torch", "numpy"],
        note="MDS on the local disk, columns stacked",
    )
