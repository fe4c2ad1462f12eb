"""How long a pipeline's stages must idle by their schedule alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stoker.doctor.traces.times import Times

SCHEDULES = ("gpipe", "1f1b", "interleaved")

# What a bubble can look like in a trace, in the order in which it is taken for one. Waits for data and copies are
# never: they have an event that says what they were.
_LOOKS_LIKE_BUBBLE = ("unattributed", "queued", "synchronising", "launching")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A pipeline's schedule.

        1f1b, 4 stages, 4 microbatches        bubble : work = (P - 1) : M

        stage 0  F F F F · · · B · B · B · B      F forward, B backward, · bubble
        stage 3  · · · F B F B F B F B · · ·

    Attributes:
        name: "gpipe", "1f1b" or "interleaved".
        num_stages: P, devices one behind the other.
        num_microbatches: M, of a step.
        num_virtual: V, parts of the model on each device; 1 but with "interleaved".

    Raises:
        ValueError: The numbers make no such schedule.

    Source:
        Huang et al., "GPipe", NeurIPS 2019, section 2.3: a bubble of (P - 1) / (M + P - 1) of the step. Narayanan et
        al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2:
        the same bubble for 1F1B, (P - 1) / M of the work, and with V parts a device (P - 1) / (V M) of it.
    """

    name: str
    num_stages: int
    num_microbatches: int
    num_virtual: int = 1

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise ValueError(f"the schedule is {self.name!r}, not one of {', '.join(SCHEDULES)}")
        if min(self.num_stages, self.num_microbatches, self.num_virtual) < 1:
            raise ValueError("a pipeline has at least one stage, one microbatch and one part of the model a stage")
        if self.name != "interleaved":
            if self.num_virtual != 1:
                raise ValueError(f"{self.num_virtual} parts a stage make an interleaved schedule, not {self.name}")
        elif self.num_virtual < 2:
            raise ValueError("an interleaved schedule has two or more parts of the model a stage: say how many")
        elif self.num_microbatches % self.num_stages:
            raise ValueError(
                f"an interleaved schedule needs microbatches ({self.num_microbatches}) that are a multiple of the "
                f"stages ({self.num_stages})"
            )

    @property
    def bubble_share(self) -> float:
        """The share of a step that each stage idles by the schedule, stages being equally long."""
        bubble = self.num_stages - 1
        return bubble / (self.num_virtual * self.num_microbatches + bubble)


def take_bubble(times: Times, schedule: Schedule) -> tuple[Times, int]:
    """Set apart what of the idle time the schedule explains; the sums stay what they are, and nothing gets negative.

    Returns:
        The times, and as much of the rest of the bubble as exposed communication can hold: a stage that waits for its
        neighbour often spins in a receiving kernel. Nanoseconds.
    """
    left = expected = round(times.wall * schedule.bubble_share)
    parts: dict[str, int] = {}
    for part in _LOOKS_LIKE_BUBBLE:
        taken = min(left, getattr(times, part))
        parts[part] = getattr(times, part) - taken
        left -= taken
    return replace(times, **parts, pipeline_bubble=expected - left), min(left, times.exposed_comm)
