"""Stoker keeps GPUs fed: Parquet read once, turned into tensors once, kept on the training host's SSD."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.compact import Scaled
    from stoker.doctor.watch import Watched, WatchReport, watch
    from stoker.errors import (
        CacheError,
        CacheFullError,
        ChunkCorruptError,
        FieldError,
        FieldMismatchError,
        ResumeError,
        SourceChangedError,
        SourceError,
        SourceMissingError,
        StokerError,
        TransformError,
    )
    from stoker.feed.augmenting import SampleGenerator
    from stoker.feed.loader import Loader
    from stoker.feed.sequence import SequenceShard
    from stoker.feed.shard import Shard
    from stoker.source.dataset import Dataset
    from stoker.source.mixture import Mixture
    from stoker.source.units.asked import NGram, Pack
    from stoker.source.vocabulary import Vocabulary
    from stoker.spec import Deduplicated, Entry, Field, Ragged, Spec
    from stoker.trace.record import Trace
    from stoker.trace.stats import LoaderStats

__version__ = "0.1.0"

__all__ = [
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
    "Pack",
    "Ragged",
    "ResumeError",
    "SampleGenerator",
    "Scaled",
    "SequenceShard",
    "Shard",
    "SourceChangedError",
    "SourceError",
    "SourceMissingError",
    "Spec",
    "StokerError",
    "Trace",
    "TransformError",
    "Vocabulary",
    "WatchReport",
    "Watched",
    "watch",
]

# Names are looked up where they live when they are first used: `import stoker` costs a millisecond, and what is not
# used, pyarrow's parts among it, is never loaded.
_HOMES = {
    "stoker.compact": ("Scaled",),
    "stoker.doctor.watch": (
        "Watched",
        "WatchReport",
        "watch",
    ),
    "stoker.errors": (
        "CacheError",
        "CacheFullError",
        "ChunkCorruptError",
        "FieldError",
        "FieldMismatchError",
        "ResumeError",
        "SourceChangedError",
        "SourceError",
        "SourceMissingError",
        "StokerError",
        "TransformError",
    ),
    "stoker.feed.augmenting": ("SampleGenerator",),
    "stoker.feed.loader": ("Loader",),
    "stoker.feed.sequence": ("SequenceShard",),
    "stoker.feed.shard": ("Shard",),
    "stoker.source.dataset": ("Dataset",),
    "stoker.source.mixture": ("Mixture",),
    "stoker.source.units.asked": (
        "NGram",
        "Pack",
    ),
    "stoker.source.vocabulary": ("Vocabulary",),
    "stoker.spec": (
        "Deduplicated",
        "Entry",
        "Field",
        "Ragged",
        "Spec",
    ),
    "stoker.trace.record": ("Trace",),
    "stoker.trace.stats": ("LoaderStats",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
