"""Loaders' figures as OpenTelemetry metrics (`stoker[otel]`): where they go is for the SDK you have set up to say.

    from stoker.metrics.otel import observe

    observe(loader)        # read at each collection of the global meter provider

Without an SDK the API does nothing, and neither does this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stoker.metrics.metrics import METRICS, HasStats, stats_by_name

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import Observation
except ImportError as error:
    raise ImportError("OpenTelemetry metrics need its API: pip install 'stoker[otel]'") from error

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

# Unit in the way of UCUM, as OpenTelemetry asks for (https://opentelemetry.io/docs/specs/semconv/general/metrics/), and
# what lies behind a dot: time and size of one thing are two metrics.
_UNITS = {"": ("1", ""), "seconds": ("s", ".time"), "bytes": ("By", ".io"), "ratio": ("1", "")}


def observe(loaders: HasStats | Mapping[str, HasStats], *, provider: MeterProvider | None = None) -> None:
    """Let OpenTelemetry read the figures of loaders at each collection. Keeps no loader alive.

    Args:
        loaders: A loader, or several by name: the attribute `loader`; a lone one is called "loader".
        provider: Where the instruments are made; the global one unless told.
    """
    stats = stats_by_name(loaders)
    meter = (provider or metrics.get_meter_provider()).get_meter("stoker")
    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        unit, suffix = _UNITS[metric.unit]
        name = f"stoker.{metric.name}{suffix}"
        read = lambda _, values=metric.values: (Observation(value, labels) for labels, value in values(stats()))  # noqa: E731
        make(name, [read], unit=unit, description=metric.text)
