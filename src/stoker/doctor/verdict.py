"""The verdict: a pure function of what was measured. Screen, page and JSON say nothing else.

    demand   what the step was seen to eat: of batches in RAM, or of any path that gave it as much
    busy     today's rate / demand; the rest is lost
    cause    the stage whose own figure explains today's rate; without such a figure none is named
    behind   what would limit next: another stage, or the model where the step is busy nearly all the time
    fixes    paths that ran and gave more than today's by more than chance
    bounds   the most that a change which cannot be tried here can give

    loop ◄── batches ◄── windows ◄── chunks built ◄── bytes

A stage that waits is not to blame: the first one in this row that does not wait for the next is. The threads' own
clocks say where the time went; they never overrule how fast a path was seen to be.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from stoker.doctor.results import (
    ARROW,
    BUILD_STAGES,
    COLUMNS,
    DEDUPLICATED,
    LARGER,
    MODEL,
    PROCESSES,
    RAM,
    SHARED,
    SOURCE,
    STAGE_NAMES,
    SUPPLY,
    TENSORS,
    THREADS,
    UNKNOWN,
    Measurements,
    PathResult,
)
from stoker.words import factor_text, range_text, rate_text, share_text, time_text

KEEPS_UP = 0.95
"""A path that gives this share of what the step could eat is not what limits."""
NEARLY = 0.9
"""Nor is a step that runs for this share of the time held up much: whatever limits it, the model is next."""
CERTAIN, LIKELY = 0.95, 0.8

# What a batch goes through when it is made.
_BATCH_STAGES = ("gather", "augment", "copy")
# Fixes, the easiest first: of two that give the same, that one.
_FIXES = (TENSORS, DEDUPLICATED, THREADS, PROCESSES, LARGER, COLUMNS, ARROW)
# A path counts as a fix if its gain exceeds both chance and the first of these. Of two fixes whose rates differ by less
# than the second, the easier one is better.
_GAIN, _SAME = 1.05, 1.03
# Where other processes take more of the machine than the first, or repeats lie further apart than the second, nothing
# is certain; beyond the third or the fourth, nothing is even likely.
_BUSY, _SPREAD, _VERY_BUSY, _WIDE = 0.1, 0.12, 0.4, 0.4
# Rates of the same thing that lie further apart than this are not of the same machine.
_DRIFTED = 1.1
# A verified rate that is further than this from the promised one is worth a note.
_BROKEN = 0.15
# Threads that assemble batches and wait this much of their time for windows have nothing to assemble.
_MOSTLY = 0.5
# While the loop waits for a few huge chunks, no more of the threads that build do than the first, or what these spend
# their time on gives far more alone; and the chunks' evenness is below the second.
_FEW, _EVEN = 0.8, 0.6
# A stage in which less than this of one thread is at work cannot be what a path spends its time on.
_AT_WORK = 0.15
# A stage that gives so many times as much alone as came is not what limits.
_FAR_MORE = 5.0
# Nor does any stage of a path limit that gives so many times what the step eats when it runs without a step.
_COULD = 2.0
# Cores limit when this share of them is in use. If other processes take more of them than the second, these are the
# reason, provided that this process uses more cores than the third.
_IN_USE, _TAKEN, _USED = 0.8, 0.5, 0.1
# A network that carries this share of its best is full.
_FULL = 0.7
# A stage that would starve the step by itself is named, where it is not far beyond what comes today.
_STARVES = 0.9
# A rank is slow when it gives so much less than the one in the middle: nearer than that, they differ by chance.
_SLOW = 0.85
# What stands for today's path where that did not run.
_NOTHING = PathResult(key="", name="", batch_size=1)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The most that a change which cannot be tried here can give.

    Attributes:
        key: "network", "cores", "disk", "memory", "gpus".
        text: What would be changed.
        at_most_s: Samples/s that no such change can beat.
        why: What the bound is computed from.
    """

    key: str
    text: str
    at_most_s: float
    why: str


class DoctorResult:
    """What was measured, and what follows from it: what is wrong with the path that samples take now.

    Attributes:
        numbers: What was measured.
        today: The path that samples take now; one that gave nothing where it did not run.
    """

    def __init__(self, numbers: Measurements) -> None:
        self.numbers = numbers
        self.today = numbers.path(numbers.today) or _NOTHING
        self._base = numbers.path(SHARED) or numbers.path(RAM)
        self._judged = [self.today, *([self._base] if numbers.step and self._base is not None else [])]

    def to_json(self) -> dict[str, Any]:
        """Return all of it as what JSON can write."""
        verdict = {name: getattr(self, name) for name in _SAID} | {"fixes": [path.key for path in self.fixes]}
        content: dict[str, Any] = _plain({"verdict": verdict, **asdict(self.numbers)})
        for path, one in zip(content["paths"], self.numbers.paths, strict=True):
            path |= {"rate_s": one.rate_s, "limit": self.limit_of(one)}
            path |= {"times": self.times_of(one), "busy": self.busy_of(one), "promised": one.promised}
            path["step_parts"] = self.parts_of(one)
        return content

    @cached_property
    def kind(self) -> str:
        """Which verdict: "starved", "fed" (the model limits), "open" (no step), "unknown" (too little was measured)."""
        if self.today.rate_s <= 0:
            return "unknown"
        return "open" if self.busy is None else "fed" if self.busy >= KEEPS_UP else "starved"

    @cached_property
    def demand_s(self) -> float | None:
        """Samples/s that the step could eat; None without one.

        That is what it eats of batches in RAM, with a loader's work beside them where both want the same cores. Today's
        own runs tell, too: what the step ate in the time in which its loop did not wait, with the cores as they were
        just then. A path that was seen to give the step more shows that it eats more.
        """
        if not self.numbers.step or self._base is None or self.today.rate_s <= 0:
            return None
        own_s = math.inf if self.today.stall >= 1 else self.today.samples_s / (1 - self.today.stall)
        others = [path for path in self.numbers.paths if path.key not in (RAM, SHARED)]
        return max([min(self._base.rate_s, own_s), *(p.rate_s for p in others if self.is_comparable(p))]) or None

    @property
    def busy(self) -> float | None:
        """Share of the time in which the step runs today; None without one."""
        return None if self.demand_s is None else self.today.rate_s / self.demand_s

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch today."""
        return self.numbers.data.num_samples / self.today.rate_s if self.today.rate_s > 0 else 0.0

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """Keys of what limits and of what would limit next: ("step",) for the model, ("",) if none is known."""
        if self.kind in ("unknown", "fed"):
            return () if self.kind == "unknown" else (MODEL,)
        could_feed = self._could_feed is not None
        first = UNKNOWN if could_feed else self.cause_of(self.today)
        if self.busy is not None and self.busy >= NEARLY:
            return first, MODEL
        if could_feed or self.demand_s is None or self.today.key != SOURCE:
            return (first,)
        others = [one for one in self.numbers.stages if one.key != first and one.supply_s < _STARVES * self.demand_s]
        # Of those, what takes a thread longest: a fetch is told by what its link brings alone.
        behind = [one.key for one in sorted(others, key=lambda one: (one.key != "fetch", -one.seconds))[:1]]
        return tuple(behind or [first]) if first == UNKNOWN else (first, *behind)

    @cached_property
    def _doubt(self) -> float:
        """How far `busy` may be off, as a share."""
        return math.hypot(*(path.doubt for path in self._judged), math.log(self._drift))

    @property
    def _fed_chance(self) -> float:
        """The chance that the step is fed."""
        return 0.0 if self.busy is None else _chance(math.log(max(self.busy, 1e-12) / KEEPS_UP) / self._doubt)

    @cached_property
    def sureness(self) -> float:
        """The chance, 0.5 to 1, that `kind` and the first of `stages` are right.

        It follows from the spread of the repeats, and from what other processes took of the machine.
        """
        if self.kind == "unknown":
            return 0.5
        sureness = max(self._fed_chance, 1 - self._fed_chance)
        if self.busy is not None and self.kind == "fed":
            # Fed or nearly so: that nothing is to gain is as sure as that the step runs nearly all of the time.
            sureness = max(sureness, _chance((self.busy - 0.8) / self._doubt))
        if self.stages != (MODEL,) and self.stages[1:] in ((), (MODEL,)):
            sureness = min(sureness, self._cause_sureness(self.stages[0]))
        others, spread = (max(getattr(path, name) for path in self._judged) for name in ("others", "spread"))
        if others > _VERY_BUSY or spread > _WIDE:
            sureness = min(sureness, LIKELY - 0.01)
        elif others > _BUSY or spread > _SPREAD:
            sureness = min(sureness, CERTAIN - 0.01)
        return max(0.5, sureness)

    @property
    def sure(self) -> str:
        """The same in a word: "certain", "likely", "a guess"."""
        return "certain" if self.sureness >= CERTAIN else "likely" if self.sureness >= LIKELY else "a guess"

    @cached_property
    def fixes(self) -> tuple[PathResult, ...]:
        """Paths that gave more than today's, best first."""
        if self.kind in ("unknown", "fed"):
            return ()

        def gives_more(path: PathResult) -> bool:
            # A range that begins below today's rate promises nothing.
            is_known = path.came_s is not None or path.promised[0] > self.today.rate_s
            return is_known and self._lasts(path) and self.times_of(path) > max(_GAIN, 1 + self._chance_of(path))

        # The easiest first: the order of those that give the same.
        tried = [path for path in map(self.numbers.path, _FIXES) if path is not None and path is not self.today]
        tensors = self.numbers.path(TENSORS)
        if tensors is not None:  # which need the same disk as Arrow does, and less work
            tried = [path for path in tried if path.key != ARROW or path.rate_s > _GAIN * tensors.rate_s]
        return tuple(
            sorted(filter(gives_more, tried), key=lambda path: -round(math.log(path.rate_s) / math.log(_SAME)))
        )

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """What cannot be tried here and may give more than today's path, the highest first.

        A bound is no promise: a link twice as fast gives at most twice as much.
        """
        numbers, today, twice_s, most_s = self.numbers, self.today, 2 * self.today.rate_s, self.demand_s or math.inf
        supply, found = numbers.path(SUPPLY), list[Bound]()
        if self.kind in ("unknown", "fed"):
            num_gpus = 0 if supply is None or self.kind == "unknown" else math.floor(supply.rate_s / most_s)
            if supply is None or num_gpus < 2:
                return ()
            why, text = "what this loader gives with no step behind it", f"steps like this one on {num_gpus:,} GPUs"
            return (Bound(key="gpus", text=f"{text} of this host", at_most_s=supply.rate_s, why=why),)

        def add(key: str, text: str, at_most_s: float, why: str) -> None:
            if min(at_most_s, most_s) > _GAIN * today.rate_s:
                found.append(Bound(key=key, text=text, at_most_s=min(at_most_s, most_s), why=why))

        first, is_far = numbers.stage(self.stages[0]), today.key == SOURCE and numbers.data.is_remote
        if is_far and "fetch" in self.stages:
            add("network", "a link twice as fast", twice_s, "twice today's rate")
        is_waiting = self.stages[0] in ("fetch", "open", "skew") or (first is not None and first.waits)
        if not is_waiting and today.cores_used >= _IN_USE * numbers.cores * (1 - today.others):
            network_bytes_s = numbers.ceilings.get("network", math.inf) if is_far else math.inf
            network_s = network_bytes_s / max(1e-9, numbers.data.source_bytes)
            text = f"{2 * numbers.cores:.3g} cores in place of {numbers.cores:.3g}"
            add("cores", text, min(twice_s, network_s), "twice today's rate: cores share memory, a lock and a link")
        if today.is_disk_bound:
            add("memory", "memory for the whole data set", today.samples_s, "what came of the part that lay in memory")
            add("disk", "a disk twice as fast", min(twice_s, today.samples_s), "twice the disk's pace")
        return tuple(sorted(found, key=lambda bound: -bound.at_most_s))

    @property
    def money(self) -> Mapping[str, float] | None:
        """What an epoch costs in the price's currency, where one was given: "epoch", "stalls" of it, "best_fix"."""
        numbers = self.numbers
        if numbers.gpu_hour is None or self.kind == "unknown":
            return None
        epoch = self.epoch_s / 3600 * numbers.gpu_hour * numbers.num_gpus
        best = epoch / self.times_of(self.fixes[0]) if self.fixes else epoch
        return {"epoch": epoch, "stalls": epoch * (1 - (1.0 if self.busy is None else self.busy)), "best_fix": best}

    # ------------------------------------------------------------------ of any path

    def is_comparable(self, path: PathResult) -> bool:
        """Return whether a path ran the same step as today's: a measured step depends on batch size and columns."""
        numbers = self.numbers
        if not numbers.step or not path.has_step:
            return False
        return numbers.is_given or (path.batch_size == numbers.batch_size and path.key != COLUMNS)

    def times_of(self, path: PathResult) -> float:
        """Return a path's rate over today's."""
        return path.rate_s / self.today.rate_s if self.today.rate_s > 0 else 0.0

    def busy_of(self, path: PathResult) -> float | None:
        """Return the share of the time in which the step runs on a path; None where another step or none ran."""
        return path.rate_s / self.demand_s if self.demand_s is not None and self.is_comparable(path) else None

    def parts_of(self, path: PathResult) -> tuple[tuple[str, str, float], ...]:
        """Return where the time between two steps goes on a path, for as many samples as today's steps have.

        That is the key, name and seconds of each part; empty where another step or none ran, or no path to it. The key
        is that of the stage that is waited for; "step" for the step itself, "shared" for what the loader takes from it.
        """
        demand_s, ram, size = self.demand_s, self.numbers.path(RAM), self.today.batch_size
        if demand_s is None or path.key in (RAM, SHARED) or not self.is_comparable(path):
            return ()
        period_s, step_s, limit = size / path.rate_s, size / demand_s, self.limit_of(path)
        alone_s = size / ram.rate_s if ram is not None and ram.rate_s > 1.02 * demand_s else step_s
        parts = [(MODEL, "training step", alone_s)]
        if step_s > alone_s:
            parts.append((SHARED, "cores that the loader takes", step_s - alone_s))
        if period_s > step_s:
            waits = (UNKNOWN, "hand-over") if limit == MODEL else (limit, f"waits for {STAGE_NAMES[limit]}")
            parts.append((*waits, period_s - step_s))
        return tuple(parts)

    def limit_of(self, path: PathResult) -> str:
        """Return the key of what limits a path; "" for the paths that serve only as comparison."""
        if path.key in (RAM, SHARED, SUPPLY):
            return UNKNOWN
        if (self.busy_of(path) or 0.0) >= KEEPS_UP:
            return MODEL
        return self.stages[0] if path.key == self.numbers.today and self.stages else self.cause_of(path)

    def cause_of(self, path: PathResult) -> str:
        """Return the stage that a path spends its time on; UNKNOWN where none has a figure that explains it."""
        times, numbers = path.stages, self.numbers
        if path.is_disk_bound:
            return "fetch" if path.key in (SOURCE, THREADS, PROCESSES, COLUMNS) else "open"
        building = {key: times[key] for key in BUILD_STAGES if times.get(key, 0.0) > 0}
        # Most of its time is lost inside the step: what builds beside that has the lock or the cores, or nothing tells.
        busy = self.busy_of(path)
        is_slowed = busy is not None and path.stall < _MOSTLY * (1 - busy)
        if is_slowed and not building:
            return UNKNOWN
        if "dequeue" in times:
            # The loop's thread alone converts: as long as it does so all the time, nothing else can limit.
            is_loop = times["dequeue"] * path.samples_s >= _MOSTLY
            return "dequeue" if is_loop or times["dequeue"] * numbers.num_threads > times.get("draw", 0.0) else "draw"
        is_waiting = is_slowed or times.get("wait_window", 0.0) > _MOSTLY * times.get("batch", 0.0)
        if is_waiting and building:
            key, is_uneven = self._at_work(path, building), numbers.data.evenness < _EVEN
            longest = max(building, key=lambda one: building[one])
            return "skew" if is_uneven and (path.build_share < _FEW or key != longest) else key
        if is_waiting:
            return "open"
        if path.key == numbers.today and (self._fixed_share or 0.0) > 0.5:
            return "batch"
        return self._at_work(path, {key: times.get(key, 0.0) for key in _BATCH_STAGES})

    # ------------------------------------------------------------------ why

    def _lasts(self, path: PathResult) -> bool:
        """Whether a path gave more than today's when it was run once more, too, if it was."""
        return path.came_s is None or path.came_s > _GAIN * self.today.rate_s

    def _chance_of(self, path: PathResult) -> float:
        """Return how much more than today's path one may give by chance, as a share; half as much more is none."""
        return min(0.5, math.hypot(path.doubt, self.today.doubt))

    def _at_work(self, path: PathResult, times: Mapping[str, float]) -> str:
        """Return the stage with most threads in it; UNKNOWN where hardly any is, or all of them could give far more.

        A thread's time in a stage holds what it waited for a core: what gives many times as much alone is no cause.
        """
        rate_s = path.samples_s
        could = {stage.key: stage.supply_s for stage in self.numbers.stages}
        limits = {key: spent for key, spent in times.items() if could.get(key, 0.0) <= _FAR_MORE * rate_s}
        key = max(limits, key=lambda key: limits[key], default=UNKNOWN)
        return key if key and limits[key] * rate_s >= _AT_WORK else UNKNOWN

    @property
    def _could_feed(self) -> float | None:
        """How many times what the step eats today's path gives without it, where that is far more than enough.

        Then no stage is too slow: the step and the loader want the same cores, or batches come in bursts.
        """
        demand_s, supply = self.demand_s, self.numbers.path(SUPPLY)
        if demand_s is None or supply is None or supply.is_disk_bound or supply.rate_s < _COULD * demand_s:
            return None
        return supply.rate_s / demand_s

    @property
    def _fixed_share(self) -> float | None:
        """Which share of a batch's time does not grow with its size, at least; None where no larger batches ran.

        A batch takes a + b · size: two sizes tell a from b, as far as they gave more than by chance.
        """
        larger, today = self.numbers.path(LARGER), self.today
        if larger is None or larger.rate_s <= 0 or today.rate_s <= 0 or larger.batch_size <= today.batch_size:
            return None
        size, gain = larger.batch_size / today.batch_size, self.times_of(larger) / (1 + self._chance_of(larger))
        return size * (1 - 1 / gain) / (size - 1)

    @property
    def _drift(self) -> float:
        """The highest rate that the step was seen to eat over its rate on batches in RAM; 1 on a quiet machine."""
        base_s = 0.0 if self._base is None else self._base.rate_s
        return self.demand_s / base_s if self.demand_s and base_s > 0 else 1.0

    def _cause_sureness(self, key: str) -> float:
        """Return the chance that it is this stage rather than the next one: the further they lie apart, the surer."""
        today, fixed, rivals = self.today, self._fixed_share, BUILD_STAGES if key in BUILD_STAGES else _BATCH_STAGES
        if key == UNKNOWN:
            return 0.5
        if today.is_disk_bound or key not in (*rivals, "batch"):
            return 1.0
        if key not in BUILD_STAGES and fixed is not None:
            return 0.6 + 2 * abs(fixed - 0.5)
        second, first = sorted(today.stages.get(one, 0.0) for one in rivals)[-2:]
        return 0.6 + (first - second) / first if first > 0 else 0.5

    def _why(self, key: str) -> str:
        """Return what a stage lacks, in a few words; "" where nothing tells."""
        numbers, today, stage = self.numbers, self.today, self.numbers.stage(key)
        is_full = today.cores_used > max(_USED, _IN_USE * numbers.cores * (1 - today.others))
        fetch = self._why_fetch() if key == "fetch" else ""
        if today.is_disk_bound:
            return "the disk reads no faster"
        if today.others > _TAKEN and is_full and fetch != "the network is full":
            return "other processes take the cores"
        if key == UNKNOWN:
            if self._could_feed is None:
                return "no stage of it has a figure that explains why"
            times = factor_text(self._could_feed)
            why = "its batches come in bursts" if numbers.is_given else "loader and step share the cores"
            return f"which without the step gives {times} times what the step eats: {why}"
        if fetch or key in ("dequeue", "batch"):
            return fetch or ("the batches are small" if key == "batch" else "it runs in the training loop's own thread")
        if stage is not None and stage.is_locked:
            return "it holds the GIL, so one core does it all"
        if stage is not None and stage.waits:
            return "its threads mostly wait, and more threads would wait in parallel"
        if is_full:
            return "all cores are busy, mostly with this stage"
        return "too few threads" if key in BUILD_STAGES else ""

    def _why_fetch(self) -> str:
        numbers, ceilings = self.numbers, self.numbers.ceilings
        if not numbers.data.is_remote or "network" not in ceilings:
            return "the disk reads no faster"
        if self.today.samples_s * numbers.data.source_bytes >= _FULL * ceilings["network"]:
            return "the network is full"
        # One read's time is that until its first byte, then that of its bytes over one connection.
        read_bytes = numbers.data.source_bytes * numbers.data.num_samples / max(1, numbers.data.num_chunks)
        transfer_s = read_bytes / max(1.0, ceilings["connection"])
        is_late = ceilings["latency"] > transfer_s
        return "threads wait for the first byte" if is_late else "each connection is slow"

    # ------------------------------------------------------------------ what is said

    @cached_property
    def sentence(self) -> str:
        """Which stage, how sure, what it costs: one sentence."""
        if self.kind == "unknown":
            return "Too little was measured to say anything."
        today, demand_s, supply = self.today, self.demand_s, self.numbers.path(SUPPLY)
        if self.kind == "fed" and demand_s is not None:
            lead = f"The model is the limit ({self.sure}), and there is nothing to gain from the data path"
            if supply is None or supply.rate_s < 1.05 * demand_s:
                busy = share_text(today.rate_s / demand_s)
                though = "" if supply is None else ", though the loader could give hardly more"
                return f"{lead}: the step runs {busy} of the time{though}."
            times, eats = factor_text(supply.rate_s / demand_s), rate_text(demand_s)
            return f"{lead}: the loader could feed {times} times the {eats} samples/s that the step eats."
        name, reason = STAGE_NAMES[self.stages[0]], self._why(self.stages[0])
        who = name[:1].upper() + name[1:] + (f" ({reason})" if reason else "")
        rate = f"{'at most ' if today.is_disk_bound else ''}{rate_text(today.rate_s)} samples/s"
        period_s = today.batch_size / today.rate_s
        if demand_s is None:
            return (
                f"{who} is what limits ({self.sure}): {rate} can come, enough for steps of {time_text(period_s)} or "
                f"longer with batches of {today.batch_size:,}. Give --step-time or --step to learn whether that is "
                "enough."
            )
        behind = f", and hides {STAGE_NAMES[self.stages[1]]} behind it" if len(self.stages) > 1 else ""
        step_s = today.batch_size / demand_s
        return (
            f"{who} starves the step ({self.sure}){behind}: {rate} come where the step could eat "
            f"{rate_text(demand_s)}, so it stands idle {share_text(1 - today.rate_s / demand_s)} of the time, "
            f"{time_text(period_s - step_s)} at each step of {time_text(step_s)}."
        )

    @property
    def then(self) -> str:
        """The best fix and what limits with it, as a sentence; "" where there is nothing to fix."""
        if self.kind in ("unknown", "fed"):
            return ""
        if not self.fixes:
            return "Nothing that could be tried here gave more."
        best = self.fixes[0]
        least_s, most_s = best.promised
        came, times = f"{rate_text(best.rate_s)} samples/s came", factor_text(self.times_of(best))
        if least_s < most_s:
            came += f", {range_text(least_s, most_s)} are to be expected"
        return f"With {best.name}, {came} ({times} times today's), and {STAGE_NAMES[self.limit_of(best)]} limits then."

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Warnings about how the figures came about."""
        numbers, today, notes = self.numbers, self.today, list[str]()
        if numbers.interrupted:
            known = "what was measured until then is here"
            notes.append(f"The examination was interrupted ({numbers.interrupted}): {known}.")
        others = max((path.others for path in numbers.paths), default=0.0)
        if others > _BUSY:
            notes.append(
                f"Other processes took up to {share_text(others)} of the processors while this was measured: on a "
                "quiet machine the rates are higher and surer. A larger --budget measures for longer."
            )
        if today.spread > _SPREAD:
            what = "Repeats of today's path" if today.num_rounds > 1 else "Parts of the one run of today's path"
            notes.append(
                f"{what} gave {range_text(min(today.rates), max(today.rates))} samples/s: "
                "nothing that follows from it is certain."
            )
        for path in numbers.paths:
            if path.came_s is not None and abs(path.error) > _BROKEN:
                notes.append(
                    f"Run once more, {path.name} gave {rate_text(path.came_s)} samples/s, not the "
                    f"{range_text(*path.promised)} promised before: rely on neither."
                )
            elif path.came_s is not None and not self._lasts(path):
                came = f"{rate_text(path.came_s)} samples/s, hardly more than today's path"
                notes.append(f"Run once more, {path.name} gave {came}: it is not advised.")
        if self._base is not None and self._drift > _DRIFTED:
            notes.append(
                f"A path gave the step {factor_text(self._drift)} times what came of {self._base.name}: the machine's "
                "speed changed between runs, so these rates cannot be compared closely."
            )
        ram, shared = numbers.path(RAM), numbers.path(SHARED)
        # A path that gave the step more, with a loader at work as well, shows that it takes less than that from it.
        if ram is not None and shared is not None and max(shared.rate_s, self.demand_s or 0) < KEEPS_UP * ram.rate_s:
            notes.append(
                f"The step and the loader share processors: on batches in RAM the step eats {rate_text(shared.rate_s)} "
                f"samples/s with a loader at work beside it, and {rate_text(ram.rate_s)} alone."
            )
        return (*notes, *numbers.notes)


def compare_ranks(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return which of several ranks is slow: ranks step together, so all of them are as fast as the slowest.

        rank 0   █████████████│ waits
        rank 1   █████████████│ waits
        rank 2   ███████████████████████     its disk reads a third of what the others' do

    Args:
        results: Each rank's, as `DoctorResult.to_json` gives them.

    Returns:
        "sentence": which rank, which stage, what it costs the others; "rates": samples/s of each on today's path;
        "rank": number of the slow one in the order given, or None; "stage": key of the stage that makes it slow, or "";
        "lost_share": share of the others' time that is lost.

    Raises:
        ValueError: There are fewer than two, or one is no result of the doctor.
    """
    if len(results) < 2:
        raise ValueError(f"ranks are compared with each other: give two results at least, not {len(results)}")
    try:
        todays = [next(path for path in result["paths"] if path["key"] == result["today"]) for result in results]
        rates = tuple(float(path["rate_s"]) for path in todays)
        supplies = [{stage["key"]: float(stage["supply_s"]) for stage in result["stages"]} for result in results]
    except (KeyError, TypeError, StopIteration) as error:
        missing = "it lacks today's path, its rate, or the stages"
        raise ValueError(f"not a result of `stoker doctor --json`: {missing}") from error
    slowest = min(range(len(rates)), key=lambda rank: rates[rank])
    others = statistics.median(rate for rank, rate in enumerate(rates) if rank != slowest)
    if rates[slowest] >= _SLOW * others:
        sentence = f"No rank holds the others up: all give {rate_text(rates[slowest])} samples/s or more."
        return {"sentence": sentence, "rates": rates, "rank": None, "stage": "", "lost_share": 0.0}
    lag = {}
    for key, supply in supplies.pop(slowest).items():
        theirs = [other[key] for other in supplies if key in other]
        if theirs:
            lag[key] = supply / statistics.median(theirs)
    # The stage that limits the slow rank, if that lags; else whichever lags most.
    stage = str(todays[slowest]["limit"])
    if lag.get(stage, 1.0) >= _SLOW:
        stage = min(lag, key=lambda key: lag[key], default=stage)
    lost = 1 - rates[slowest] / others
    sentence = (
        f"Rank {slowest} holds the others up: it gives {rate_text(rates[slowest])} samples/s where they give "
        f"{rate_text(others)}, so they stand idle {share_text(lost)} of the time."
    )
    if stage in lag:
        name = STAGE_NAMES.get(stage, stage)
        sentence += f" Its slowest stage beside theirs is {name}, at {share_text(lag[stage])} of their rate."
    return {"sentence": sentence, "rates": rates, "rank": slowest, "stage": stage, "lost_share": lost}


_SAID = tuple(
    name
    for name, one in vars(DoctorResult).items()
    if isinstance(one, property | cached_property) and not name.startswith("_")
)
"""Names of the properties that JSON has as the verdict."""


def _chance(sigmas: float) -> float:
    return 0.5 * (1 + math.erf(sigmas / math.sqrt(2)))


def _plain(value: Any) -> Any:
    """Return a value as dicts, lists and what JSON knows: without infinities and NaNs."""
    if isinstance(value, Bound):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
