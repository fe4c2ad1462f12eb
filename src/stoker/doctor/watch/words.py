"""Times, shares and rates as people read them."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """Return a time with three digits: "21.0 ms", "1.20 s"; minutes from two on."""
    if seconds >= 119.5:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            number = seconds / size
            return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f} {unit}"
    return "0 µs" if seconds < 5e-10 else "< 1 µs"


def share_text(share: float) -> str:
    """Return a share in percent: "63 %", "0.8 %"."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def factor_text(factor: float) -> str:
    """Return how many times: "2.7", "14"."""
    return f"{factor:.2f}" if factor < 1.195 else f"{factor:.1f}" if factor < 9.95 else f"{factor:.0f}"
