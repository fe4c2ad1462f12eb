"""Stoker keeps GPUs fed: Parquet read once, turned into tensors once, kept on the training host's SSD."""

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
