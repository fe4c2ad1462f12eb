"""The top of the page: the verdict in a line, in a sentence, and in four figures."""

from __future__ import annotations

from stoker.doctor.report.figures import cost, rate, seconds, share, stage_words, times
from stoker.doctor.report.markup import paragraphs, sentence, words
from stoker.doctor.results import MODEL, DoctorResult

_LONGEST = 64


def headline(result: DoctorResult) -> str:
    """Return the verdict in a line."""
    keys = result.verdict.stages
    if not keys:
        return "Nothing was found that limits"
    if keys == (MODEL,):
        return "The model is the limit: its data comes in time"
    first, *behind = (shortened(stage_words(result, key)) for key in keys)
    text = first[:1].upper() + first[1:]
    does = "sets the pace of the data" if result.step is None else "starves the step"
    return f"{text} {does}" + (f", and behind it {' and '.join(behind)}" if behind else "")


def head(result: DoctorResult) -> str:
    """Return the top of the page."""
    verdict = result.verdict
    mark, kind = _mark(result)
    tiles = "\n".join(
        f"<div{' class=is-ours' if is_ours else ''}><b>{words(value)}</b><span>{words(about)}</span></div>"
        for value, about, is_ours in _tiles(result)
    )
    notes = paragraphs(dict.fromkeys((*verdict.notes, *result.notes)), kind="caveat")
    return f"""<header>
<p class="brand"><b>stoker</b> doctor · {words(result.when)} · {words(result.data.text)}</p>
<p class="status {kind}"><span aria-hidden="true">{mark}</span> {words(_status(result))}</p>
<h1>{words(headline(result))}</h1>
<p class="verdict">{sentence(verdict.sentence)}</p>
{paragraphs([verdict.then], kind="lead")}
<div class="figures">
{tiles}
</div>
{notes}
</header>"""


def shortened(text: str) -> str:
    """Return a name for a place that has no room for a long one; it stands in full further down."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"


def _mark(result: DoctorResult) -> tuple[str, str]:
    if result.verdict.stages in ((), (MODEL,)):
        return "✓", "is-fine"
    return ("✗", "is-starved") if result.step is not None else ("•", "is-open")


def _status(result: DoctorResult) -> str:
    sure = f"{result.verdict.sure} ({share(round(result.verdict.sureness, 2))})"
    if result.verdict.stages in ((), (MODEL,)):
        return f"Nothing to mend in the data path · {sure}"
    return f"The step waits for data · {sure}" if result.step is not None else f"No step was given · {sure}"


def _tiles(result: DoctorResult) -> list[tuple[str, str, bool]]:
    """Return the figures that a reader takes away: value, what it is, whether it is what could be."""
    today = result.today
    best = result.fixes[0] if result.fixes else None
    tiles: list[tuple[str, str, bool]] = []
    if today.busy is None:
        tiles.append((rate(today.predicted_s), "samples/s come today", False))
        if best is not None:
            tiles.append((rate(best.predicted_s), f"samples/s with: {shortened(best.text)}", True))
    else:
        tiles.append((share(today.busy), "of the time the step runs today", False))
        if best is not None and best.busy is not None:
            tiles.append((share(best.busy), f"with: {shortened(best.text)}", True))
    if best is not None:
        tiles.append((times(best.times), "the samples a second, with that", False))
        epoch_s = today.epoch_s / best.times if best.times else None
        tiles.append((seconds(epoch_s), f"an epoch, where it is {seconds(today.epoch_s)} now", False))
    else:
        tiles.append((seconds(today.epoch_s), "an epoch", False))
        if result.step is not None:
            tiles.append((rate(today.supply_s), f"samples/s the loader could give; the step eats "
                          f"{rate(result.step.demand.samples_s)}", False))  # fmt: skip
    if result.money is not None:
        tiles.append((cost(result.money.stalls), f"lost to stalls, of {cost(result.money.epoch)} an epoch", False))
    return tiles
