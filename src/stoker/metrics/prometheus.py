"""Loaders' figures for Prometheus: an endpoint, or a collector for a registry you have (`stoker[prometheus]`).

    from stoker.metrics.prometheus import serve

    with serve(loader, port=9464):          # http://127.0.0.1:9464/metrics
        for batch in loader:
            ...

Names, units and labels follow Prometheus's conventions: a `stoker_` prefix, base units, `_total` behind counters.
`rate(stoker_stall_seconds_total[1m])` is the share of time in which the training loop waits.

Source: https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stoker.metrics.metrics import METRICS, HasStats, stats_by_name

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("monitoring with Prometheus needs its client: pip install 'stoker[prometheus]'") from error


class LoaderCollector(Collector):
    """Gives a registry the figures of loaders, read anew at each scrape. Keeps no loader alive.

        prometheus_client.REGISTRY.register(LoaderCollector({"train": train, "validation": validation}))

    Args:
        loaders: A loader, or several by name: the label `loader`; a lone one is called "loader".
    """

    def __init__(self, loaders: HasStats | Mapping[str, HasStats]) -> None:
        self._stats = stats_by_name(loaders)

    def collect(self) -> Iterable[Family]:
        """Yield every metric of every loader."""
        stats = self._stats()
        for metric in METRICS:
            name = "_".join(part for part in ("stoker", metric.name, metric.unit) if part)
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(name, metric.text, labels=("loader", *metric.labels), unit=metric.unit)
            for labels, value in metric.values(stats):
                family.add_metric([*labels.values()], value)
            yield family


@contextmanager
def serve(loaders: HasStats | Mapping[str, HasStats], *, port: int = 9464, address: str = "127.0.0.1") -> Iterator[str]:
    """Serve the figures of loaders from a thread of the client's, and give the URL, as long as the block lasts.

    Args:
        loaders: A loader, or several by name.
        port: Where; 0 takes a free one, which the URL names. Each process needs its own.
        address: "0.0.0.0" lets other hosts scrape it.

    Raises:
        OSError: The port is taken, or the address is not this host's.
    """
    registry = CollectorRegistry()
    registry.register(LoaderCollector(loaders))
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            error.add_note(f"port {port} is taken: each process needs one of its own, such as {port} + local rank")
        raise
    try:
        yield f"http://{'127.0.0.1' if address in ('', '0.0.0.0') else address}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
