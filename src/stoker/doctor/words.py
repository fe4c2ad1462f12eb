"""Numbers as people read them, in the doctor's sentences."""

from __future__ import annotations

from stoker.words import duration_text


def rate_text(samples_s: float) -> str:
    """Return a rate in three digits: "218,000", "1.25 M", "912"."""
    if samples_s >= 999_500:
        return f"{samples_s / 1e6:.3g} M" if samples_s < 9.995e8 else f"{samples_s / 1e9:.3g} G"
    if samples_s >= 1000:
        return f"{float(f'{samples_s:.3g}'):,.0f}"
    return f"{samples_s:.3g}"


def size_text(num_bytes: float) -> str:
    """Return a size in three digits: "354 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"


def time_text(seconds: float) -> str:
    """Return a time in three digits: "4.55 ms", "2 min 10 s"."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    return duration_text(seconds)


def share_text(share: float) -> str:
    """Return a share: "76 %"; what is nearly nothing or nearly everything keeps a digit."""
    percent = 100 * share
    return f"{percent:.1f} %" if 0 < percent < 1 or 99 < percent < 100 else f"{percent:.0f} %"


def factor_text(factor: float) -> str:
    """Return how many times: "2.7", "14"."""
    return f"{factor:.2f}" if factor < 1.195 else f"{factor:.1f}" if factor < 9.95 else f"{factor:.0f}"
