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
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self

from stoker.metrics.metrics import METRICS, HasStats, LoadersByName, Metric

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
        self._watched = LoadersByName(loaders)

    def collect(self) -> Iterable[Family]:
        """Yield every metric of every loader."""
        stats = self._watched.stats()
        for metric in METRICS:
            family = _family(metric)
            for name, found in stats.items():
                for labels, value in metric.read(found).items():
                    family.add_metric((name, *labels), value)
            yield family

    def describe(self) -> Iterable[Family]:
        """Yield the names, so that registering reads no figures."""
        return [_family(metric) for metric in METRICS]


class Endpoint:
    """An HTTP endpoint that Prometheus scrapes. Use it in a with block, or call `close`.

    Args:
        loaders: As of `LoaderCollector`.
        port: Where; 0 takes a free one.
        address: Which network it listens on.
    """

    def __init__(self, loaders: HasStats | Mapping[str, HasStats], *, port: int, address: str) -> None:
        registry = CollectorRegistry()
        registry.register(LoaderCollector(loaders))
        try:
            self._server, self._thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                error.add_note(f"port {port} is taken: each process needs one of its own, such as {port} + local rank")
            raise
        self.port: int = self._server.server_port
        self.url = f"http://{'127.0.0.1' if address in ('', '0.0.0.0') else address}:{self.port}/metrics"

    def close(self) -> None:
        """Stop it. Harmless when called again.

        Blocks: until a scrape under way is answered.
        """
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(loaders: HasStats | Mapping[str, HasStats], *, port: int = 9464, address: str = "127.0.0.1") -> Endpoint:
    """Serve the figures of loaders at `http://address:port/metrics`, from a thread of the client's.

    Args:
        loaders: A loader, or several by name.
        port: Where; 0 takes a free one, which the result names. Each process needs its own.
        address: "0.0.0.0" lets other hosts scrape it.

    Raises:
        OSError: The port is taken, or the address is not this host's.
    """
    return Endpoint(loaders, port=port, address=address)


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    name = "_".join(part for part in ("stoker", metric.name, metric.unit) if part)
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return make(name, metric.text, labels=("loader", *metric.labels), unit=metric.unit)
