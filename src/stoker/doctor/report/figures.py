"""Figures as people read them, those that are no figures too."""

from __future__ import annotations

import math
import re

from stoker.doctor.results import ARROW, MODEL, SOURCE, TENSORS, Ceiling, DoctorResult
from stoker.doctor.words import rate_text, share_text, size_text, time_text

NONE = "–"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=\D)")

PATH_WORDS = {SOURCE: "every epoch from the source", ARROW: "Arrow on SSD", TENSORS: "tensors on SSD"}


def rate(samples_s: float | None) -> str:
    """Return a rate, or a dash where there is none."""
    return _finite(samples_s) or _kept(rate_text(samples_s or 0.0))


def seconds(value: float | None) -> str:
    """Return a time, or a dash where there is none."""
    return _finite(value) or _kept("0 s" if not value else time_text(value))


def size(num_bytes: float | None) -> str:
    """Return a size, or a dash where there is none."""
    return _finite(num_bytes) or _kept(size_text(num_bytes or 0.0))


def share(value: float | None) -> str:
    """Return a share, or a dash where there is none."""
    return _finite(value) or _kept(share_text(value or 0.0))


def times(value: float | None) -> str:
    """Return a factor: "0.21×", "4.9×", "more than 100×"."""
    text = _finite(value)
    if text or value is None:
        return text or NONE
    if value >= 100:
        return "> 100×"
    return f"{value:.2g}×" if value < 10 else f"{value:.0f}×"


def cost(amount: float | None) -> str:
    """Return an amount of money, without its currency: nobody told it."""
    text = _finite(amount)
    if text or amount is None:
        return text or NONE
    return f"{amount:,.2f}" if amount >= 0.995 or amount == 0 else f"{amount:.2g}"


def ceiling(value: Ceiling) -> str:
    """Return what a machine can do, with its unit."""
    if value.unit == "s":
        return seconds(value.value)
    if value.unit == "cores":
        return _finite(value.value) or f"{value.value:.3g} cores"
    return _finite(value.value) or f"{size_text(value.value)}/s"


def stage_words(result: DoctorResult, key: str) -> str:
    """Return a stage as people read it: by its key, or as "the model", or as the cause that is no stage."""
    if key == MODEL:
        return "the model"
    stage = result.stage(key)
    if stage is not None:
        return stage.name
    return {"skew": "skewed chunk sizes", "": "nothing that was found"}.get(key, key)


def _kept(text: str) -> str:
    """Return a figure whose unit never stands on a line of its own."""
    return _BEFORE_UNIT.sub("\u00a0", text)


def _finite(value: float | None) -> str:
    """Return what stands in place of a value that is no number; "" for one that is."""
    if value is None or math.isnan(value):
        return NONE
    return "" if math.isfinite(value) else "no limit"
