"""Numbers, lists, rates and shares as people read them: on the screen, on pages, and in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

NONE = "–"
"""What stands where there is no figure."""


def bytes_text(num_bytes: float) -> str:
    """Return a size: "1.5 GB"."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(num_bytes) < 999.95 or unit == "TB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError("unreachable")


def count_text(num: float, noun: str = "", *, plural: str = "") -> str:
    """Return a count: "2,000,000", or "1 file", "3 files"."""
    if not noun:
        return f"{num:,.0f}"
    return f"{num:,.0f} {noun if num == 1 else plural or noun + 's'}"


def some_of(names: Sequence[object], most: int) -> str:
    """Return the first names of a list and how many more there are: "a, b and 1,200 more"."""
    rest = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {rest:,} more" if rest > 0 else "")


def bar_text(share: float, width: int, *, rest: str = "") -> str:
    """Return a bar as long as `share` of `width` characters, to an eighth of one; `rest` fills the others."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return bar + rest * (width - len(bar))


def duration_text(seconds: float) -> str:
    """Return a duration: "3 min 20 s"."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def time_text(seconds: float) -> str:
    """Return a time in three digits: "4.55 ms", "2 min 10 s"; below a nanosecond "under 1 ns"."""
    if seconds < 1e-9:
        return "0 s" if seconds <= 0 else "under 1 ns"
    for unit, factor in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3), ("s", 1.0)):
        if seconds * factor < (99.5 if unit == "s" else 999.5):
            return f"{seconds * factor:.3g} {unit}"
    return duration_text(seconds)


def age_text(seconds: float) -> str:
    """Return how long ago something was, in its largest unit: "3 h ago"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size):,} {unit} ago"
    return "just now"


def plain_number(num: float) -> str:
    """Return a number, with one decimal where it is not whole and below 1,000: "640", "12.5"."""
    return f"{num:,.0f}" if num == int(num) or num >= 1000 else f"{num:,.1f}"


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
