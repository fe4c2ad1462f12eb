"""What a loader has done, and who waited for whom meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from stoker.metrics.stages import StageTotal
from stoker.words import bytes_text, count_text, duration_text, time_text

_NONE = StageTotal()
# Fields of `LoaderStats` that no two looks are subtracted in.
_HOLDS_NOW = {"num_ready", "epoch", "epoch_step", "epoch_steps", "stages", "active"}


class Waits(NamedTuple):
    """Who waited for whom, and how many seconds. All but the first are added over threads.

    Attributes:
        loop_for_batch_s: The training loop for a batch: the stall.
        batch_for_window_s: Threads that assemble batches for a window to be open: its chunks came too late.
        window_for_chunk_s: The opening of windows for chunks that were still being built.
        build_for_bytes_s: Threads that build chunks for the bytes of the source.
        batch_for_room_s: Threads that assemble batches for room in the queue: time in which they were not needed.
    """

    loop_for_batch_s: float
    batch_for_window_s: float
    window_for_chunk_s: float
    build_for_bytes_s: float
    batch_for_room_s: float


@dataclass(frozen=True, kw_only=True)
class LoaderStats:
    """What a loader has done since it was made, or between two looks: see `since`.

    Attributes:
        num_steps: Batches handed over.
        num_samples: Samples in them.
        wait_s: Time the training loop waited for batches: the stall.
        step_s: Time between two hand-overs in which it did not wait: the steps.
        elapsed_s: Time since the loader was made.
        num_ready: Batches that wait for their step right now.
        num_built: Chunks built by this process.
        num_reused: Uses of chunks that were in the cache when they were asked for: each once a window.
        num_missed: Uses of others.
        num_mended: Chunks that were corrupt and were built again.
        num_evicted: Chunks removed to make room for others.
        num_substituted: Chunks for whose rows others stand in, of those built or met so far: see `on_error`.
        num_fetched: Chunks that came from the mirror.
        num_uploaded: Chunks put there.
        num_mirror_failures: Times it could not be used, and chunks of it that were not what they should be.
        epoch: Epoch of the next batch.
        epoch_step: Steps of that epoch that are over, those of earlier runs included.
        epoch_steps: Steps it has.
        stages: Time and bytes of each stage, added over threads. Some lie inside others: see `stoker.metrics.stages`.
        active: How many threads are inside each stage right now.
        num_dropped_spans: Spans that a `Trace` could not keep.
    """

    num_steps: int
    num_samples: int
    wait_s: float
    step_s: float = 0.0
    elapsed_s: float = 0.0
    num_ready: int
    num_built: int = 0
    num_reused: int = 0
    num_missed: int = 0
    num_mended: int = 0
    num_evicted: int = 0
    num_substituted: int = 0
    num_fetched: int = 0
    num_uploaded: int = 0
    num_mirror_failures: int = 0
    epoch: int = 0
    epoch_step: int = 0
    epoch_steps: int = 0
    stages: Mapping[str, StageTotal]
    active: Mapping[str, int] = field(default_factory=dict)
    num_dropped_spans: int = 0

    @property
    def _loop_s(self) -> float:
        return self.wait_s + self.step_s

    @property
    def stall_share(self) -> float:
        """Share of the loop's time in which it waited for a batch; 0 before the first one."""
        return _share(self.wait_s, self._loop_s)

    @property
    def busy_share(self) -> float:
        """Share of the loop's time in which it stepped; 0 before the first batch."""
        return _share(self.step_s, self._loop_s)

    @property
    def samples_per_s(self) -> float:
        """Samples for each second of the loop, steps and waits together."""
        return _share(self.num_samples, self._loop_s)

    @property
    def steps_per_s(self) -> float:
        """Steps for each second of the loop, steps and waits together."""
        return _share(self.num_steps, self._loop_s)

    @property
    def hit_share(self) -> float:
        """Share of the uses of chunks for which they were in the cache; of an epoch, where that is what was counted."""
        return _share(self.num_reused, self.num_reused + self.num_missed)

    @property
    def num_building(self) -> int:
        """Chunks in the making right now."""
        return self.active.get("build", 0)

    @property
    def fetched_bytes(self) -> int:
        """Bytes read from the source."""
        return self.stages.get("fetch", _NONE).num_bytes

    @property
    def left_s(self) -> float | None:
        """Time that the rest of the epoch takes at the rate of the steps counted here; None before the first one."""
        if not self.num_steps:
            return None
        return (self.epoch_steps - self.epoch_step) * self._loop_s / self.num_steps

    @property
    def waits(self) -> Waits:
        """Who waited for whom."""
        stages = ("wait_window", "wait_chunk", "fetch", "wait_room")
        return Waits(self.wait_s, *(self.stages.get(stage, _NONE).busy_s for stage in stages))

    def scalars(self) -> dict[str, float]:
        """Return shares and rates by name, as TensorBoard, Weights & Biases and others take them."""
        values: dict[str, float] = {
            "busy share": self.busy_share,
            "stall share": self.stall_share,
            "samples per second": self.samples_per_s,
            "steps per second": self.steps_per_s,
            "cache hit share": self.hit_share,
            "batches ready": self.num_ready,
            "bytes fetched": self.fetched_bytes,
        }
        # In threads: 1.0 is one thread at it all the time.
        threads = {name: _share(total.busy_s, self.elapsed_s) for name, total in self.stages.items()}
        return values | {f"threads in stage/{name}": num for name, num in threads.items()}

    def __str__(self) -> str:
        """Return it for people, a line a question."""
        left = "" if self.left_s is None else f", {duration_text(self.left_s)} left at this rate"
        chunks = {
            "built": self.num_built,
            "found in the cache": self.num_reused,
            "mended": self.num_mended,
            "evicted": self.num_evicted,
            "substituted": self.num_substituted,
            "fetched from the mirror": self.num_fetched,
            "put into the mirror": self.num_uploaded,
            "times the mirror failed": self.num_mirror_failures,
            "in the making": self.num_building,
        }
        _, window_s, chunk_s, source_s, room_s = self.waits
        awaited = {"the source": source_s, "chunks": chunk_s, "windows": window_s, "room": room_s}
        waited = ", ".join(f"{time_text(seconds)} for {what}" for what, seconds in awaited.items() if seconds >= 0.0005)
        loop = f"waited {time_text(self.wait_s)} for batches ({self.stall_share:.0%} of its time)"
        speed = f"{self.samples_per_s:,.0f} samples/s, {self.steps_per_s:,.1f} steps/s"
        rows = {
            "epoch": f"{self.epoch}, step {self.epoch_step:,} of {self.epoch_steps:,}{left}",
            "done": f"{count_text(self.num_steps, 'step')}, {count_text(self.num_samples, 'sample')}",
            "speed": speed * bool(self.num_steps),
            "the loop": f"{loop}, stepped {time_text(self.step_s)}" * bool(self.num_steps),
            "ready": f"{count_text(self.num_ready, 'batch', plural='batches')} ahead of the step",
            "chunks": ", ".join(f"{num:,} {what}" for what, num in chunks.items() if num) or "none yet",
            "source": f"{bytes_text(self.fetched_bytes)} read" * bool(self.fetched_bytes),
            "threads": waited and f"waited {waited}",
        }
        return "\n".join(f"{name:<9} {text}" for name, text in rows.items() if text)

    def since(self, earlier: LoaderStats) -> LoaderStats:
        """Return what was added after `earlier`; what holds right now (`num_ready`, `epoch`, ...) stays as it is."""
        names = (part.name for part in fields(self) if part.name not in _HOLDS_NOW)
        added = {name: getattr(self, name) - getattr(earlier, name) for name in names}
        stages = {name: total.since(earlier.stages.get(name, _NONE)) for name, total in self.stages.items()}
        return replace(self, **added, stages=stages)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
