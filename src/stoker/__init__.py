"""Stoker keeps GPUs fed: Parquet read once, turned into tensors once, kept on the training host's SSD."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.cache.store import Cache
    from stoker.dataset.dataset import Dataset
    from stoker.dataset.mixture import Mixture
    from stoker.dataset.units.kinds import NGram, Pack
    from stoker.dataset.vocabulary import Vocabulary
    from stoker.doctor.watch import Watched, WatchReport, watch
    from stoker.errors import (
        CacheError,
        CacheFullError,
        ChunkCorruptError,
        FieldError,
        FieldMismatchError,
        ResumeError,
        SourceChangedError,
        SourceCorruptError,
        SourceError,
        SourceMissingError,
        StokerError,
        TransformError,
    )
    from stoker.fields.compact import Scaled
    from stoker.fields.spec import Deduplicated, Entry, Field, Ragged, Spec
    from stoker.loader.augmenting import SampleGenerator
    from stoker.loader.loader import Loader
    from stoker.loader.sequence import SequenceShard
    from stoker.loader.shard import Shard
    from stoker.metrics.record import Trace
    from stoker.metrics.stats import LoaderStats
    from stoker.storage.storage import ObjectInfo, Storage

__version__ = "0.1.0"

__all__ = [
    "Cache",
    "CacheError",
    "CacheFullError",
    "ChunkCorruptError",
    "Dataset",
    "Deduplicated",
    "Entry",
    "Field",
    "FieldError",
    "FieldMismatchError",
    "Loader",
    "LoaderStats",
    "Mixture",
    "NGram",
    "ObjectInfo",
    "Pack",
    "Ragged",
    "ResumeError",
    "SampleGenerator",
    "Scaled",
    "SequenceShard",
    "Shard",
    "SourceChangedError",
    "SourceCorruptError",
    "SourceError",
    "SourceMissingError",
    "Spec",
    "StokerError",
    "Storage",
    "Trace",
    "TransformError",
    "Vocabulary",
    "WatchReport",
    "Watched",
    "watch",
]

# A name is imported from its module when it is first used: `import stoker` costs a millisecond, and modules that are
# not used, such as parts of pyarrow, are never loaded.
_HOMES = {
    "stoker.cache.store": ("Cache",),
    "stoker.fields.compact": ("Scaled",),
    "stoker.doctor.watch": ("Watched", "WatchReport", "watch"),
    "stoker.errors": tuple(name for name in __all__ if name.endswith("Error")),
    "stoker.loader.augmenting": ("SampleGenerator",),
    "stoker.loader.loader": ("Loader",),
    "stoker.loader.sequence": ("SequenceShard",),
    "stoker.loader.shard": ("Shard",),
    "stoker.dataset.dataset": ("Dataset",),
    "stoker.dataset.mixture": ("Mixture",),
    "stoker.dataset.units.kinds": ("NGram", "Pack"),
    "stoker.dataset.vocabulary": ("Vocabulary",),
    "stoker.fields.spec": ("Deduplicated", "Entry", "Field", "Ragged", "Spec"),
    "stoker.metrics.record": ("Trace",),
    "stoker.metrics.stats": ("LoaderStats",),
    "stoker.storage.storage": ("ObjectInfo", "Storage"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
