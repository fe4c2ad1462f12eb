"""Several ranks' results side by side: which one holds the others up, and with which stage. Pure.

Ranks step together, so all of them are as fast as the slowest:

    rank 0   █████████████│ waits
    rank 1   █████████████│ waits
    rank 2   ███████████████████████     its disk reads a third of what the others' do
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.doctor.results import STAGE_NAMES
from stoker.doctor.words import rate_text, share_text

# A rank is slow when it gives so much less than the one in the middle: nearer than that, they differ by chance.
_SLOW = 0.85


def compare_ranks(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return which of several ranks is slow.

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
