"""Ranks beside each other: which one holds up the others?"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from stoker.doctor.watch.findings import Finding
from stoker.loader.shard import Ranks
from stoker.words import time_text

# A rank lags where it is this share of a step behind the middle one.
_LAGS = 0.05


@dataclass(frozen=True, kw_only=True)
class RankFigures:
    """One rank's means.

    Attributes:
        rank: Which.
        num_steps: Steady steps that the means rest on.
        stall_s: Mean stall of a step.
        step_s: Mean time of a step.
    """

    rank: int
    num_steps: int
    stall_s: float
    step_s: float

    @property
    def whole_s(self) -> float:
        """Mean time of a step and its stall."""
        return self.stall_s + self.step_s


def find_straggler(ranks: Sequence[RankFigures]) -> Finding | None:
    """Return the rank that holds up the others, None where none does.

    Where steps end in a collective, all ranks need the same time in all: the one whose data is late has the longest
    stall, and the others wait for it inside their step. Where they do not, the slow rank simply takes longer.
    """
    ranks = [figures for figures in ranks if figures.num_steps]
    if len(ranks) < 2:
        return None
    lag = _LAGS * statistics.median(figures.whole_s for figures in ranks)
    worst = max(ranks, key=lambda figures: figures.stall_s)
    others = statistics.median(figures.stall_s for figures in ranks if figures is not worst)
    late = worst.stall_s - others
    sentence = f"rank {worst.rank} waits {time_text(worst.stall_s)} a step for its batch, the others "
    sentence += f"{time_text(others)}: where steps end in a collective, all ranks wait for rank {worst.rank}"
    advice = f"compare rank {worst.rank}'s host with the others: its disk, its network, its share of the files"
    if late < lag or not lag:
        worst = max(ranks, key=lambda figures: figures.whole_s)
        rest = [figures for figures in ranks if figures is not worst]
        others = statistics.median(figures.step_s for figures in rest)
        late = worst.step_s - others
        late_whole = worst.whole_s - statistics.median(figures.whole_s for figures in rest)
        sentence = f"rank {worst.rank} takes {time_text(worst.step_s)} a step, the others {time_text(others)}; "
        sentence += "its batches come in time"
        advice = f"not the loader: compare rank {worst.rank}'s device with the others, its clock and its temperature"
        if min(late, late_whole) < lag or not lag:
            return None
    share = min(1.0, late / worst.whole_s)
    return Finding(name="straggler", share=share, sentence=sentence, advice=advice, rank=worst.rank)


def rank_here() -> tuple[int, int]:
    """Return rank and world size, as a loader would find them."""
    shard = Ranks().guess()
    return shard.rank, shard.world_size


def write_rank(folder: Path, mine: RankFigures, *, world_size: int) -> None:
    """Write one rank's figures into a folder that all ranks share, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{mine.rank:05d}-of-{world_size:05d}.json"
    aside = path.with_suffix(f".{os.getpid()}.part")
    aside.write_text(json.dumps(asdict(mine)))
    aside.replace(path)


def read_ranks(folder: Path, *, world_size: int | None = None) -> tuple[RankFigures, ...]:
    """Return the figures that ranks have written into a folder, in the order of ranks.

    Args:
        folder: Where they wrote.
        world_size: Of the run that is meant; unless told, that of the file written last.

    Raises:
        FileNotFoundError: No rank has written there.
        ValueError: A file there is not one of a rank.
    """
    paths = sorted(folder.glob("rank-*-of-*.json"))
    if not paths:
        raise FileNotFoundError(f"no rank has written to {folder}; give each one watch(loader, ranks={str(folder)!r})")
    if world_size is None:
        latest = max(paths, key=lambda path: path.stat().st_mtime_ns)
        of = latest.stem.rpartition("-of-")[2]
    else:
        of = f"{world_size:05d}"
    return tuple(_read(path) for path in paths if path.stem.endswith(f"-of-{of}"))


def _read(path: Path) -> RankFigures:
    try:
        return RankFigures(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not what a watched rank writes ({error}); delete it") from error
