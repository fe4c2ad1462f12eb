"""Figures as people read them: on the screen, on the page, and in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable

from stoker.words import time_text as time_text

NONE = "–"
"""What stands where there is no figure."""


def rate_text(samples_s: float) -> str:
    """Return a rate in three digits: "218,000", "1.25 M", "912"."""
    if not math.isfinite(samples_s):
        return "no limit"
    if samples_s >= 999_500:
        return f"{samples_s / 1e6:.3g} M" if samples_s < 9.995e8 else f"{_digits(samples_s / 1e9)} G"
    return _digits(samples_s) if samples_s >= 0.001 else "under 0.001" if samples_s else "0"


def range_text(least_s: float, most_s: float, text: Callable[[float], str] = rate_text) -> str:
    """Return from which rate to which, or the one that both read as: "190,000 to 218,000"; `text` says them."""
    least, most = text(least_s), text(most_s)
    return most if least == most else f"{least} to {most}"


def share_text(share: float | None) -> str:
    """Return a share: "76 %", "8.6 %", "99.2 %"."""
    if share is None:
        return NONE
    percent = 100 * share
    if 0 < percent < 0.05:
        return "under 0.1 %"
    return f"{percent:.1f} %" if 0 < percent < 9.95 or 99 < percent < 99.95 else f"{percent:.0f} %"


def factor_text(factor: float) -> str:
    """Return a factor: "2.7", "14"."""
    return f"{factor:.2f}" if factor < 1.195 else f"{factor:.1f}" if factor < 9.95 else f"{factor:.0f}"


def cost_text(amount: float) -> str:
    """Return an amount of money without its currency, which is not known: "1.25", "under 0.01"."""
    return f"{amount:,.2f}" if amount >= 0.01 or amount <= 0 else "under 0.01"


def _digits(value: float) -> str:
    """Return a large number in three significant digits, without an exponent."""
    return f"{value:.3g}" if value < 999.5 else f"{float(f'{value:.3g}'):,.0f}"
