"""Loaders' figures as OpenTelemetry metrics (`stoker[otel]`): where they go is for the SDK you have set up to say.

    from stoker.metrics.otel import observe

    observe(loader)        # read at each collection of the global meter provider

Without an SDK the API does nothing, and neither does this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from stoker.metrics.metrics import METRICS, HasStats, Metric, stats_by_name
from stoker.metrics.stats import LoaderStats

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, Observation
except ImportError as error:
    raise ImportError("OpenTelemetry metrics need its API: pip install 'stoker[otel]'") from error

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

# Units in the way of UCUM, as OpenTelemetry asks for: https://opentelemetry.io/docs/specs/semconv/general/metrics/
_UNITS = {"": "1", "seconds": "s", "bytes": "By", "ratio": "1"}
# What lies behind a dot: time and size of one thing are two metrics.
_SUFFIXES = {"": "", "seconds": ".time", "bytes": ".io", "ratio": ""}


def observe(loaders: HasStats | Mapping[str, HasStats], *, provider: MeterProvider | None = None) -> None:
    """Let OpenTelemetry read the figures of loaders at each collection. Keeps no loader alive.

    Args:
        loaders: A loader, or several by name: the attribute `loader`; a lone one is called "loader".
        provider: Where the instruments are made; the global one unless told.
    """
    stats = stats_by_name(loaders)
    meter = metrics.get_meter("stoker") if provider is None else provider.get_meter("stoker")
    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        name = f"stoker.{metric.name}{_SUFFIXES[metric.unit]}"
        make(name, [_callback(metric, stats)], unit=_UNITS[metric.unit], description=metric.text)


def _callback(
    metric: Metric, stats: Callable[[], dict[str, LoaderStats]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        for labels, value in metric.values(stats()):
            yield Observation(value, dict(zip(("loader", *metric.labels), labels, strict=True)))

    return read
