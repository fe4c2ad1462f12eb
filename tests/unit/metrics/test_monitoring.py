"""What monitoring systems are told; Prometheus itself has a test of its own."""

import gc
import re

import pytest

from stoker import LoaderStats
from stoker.metrics.metrics import METRICS, stats_by_name
from stoker.metrics.record import nvtx_ranges
from stoker.metrics.stages import Stages, StageTotal

STAGES = {
    "fetch": StageTotal(num_calls=4, busy_s=2.0, num_bytes=4096),
    "gather": StageTotal(num_calls=10, busy_s=0.5, num_bytes=640),
}


class Loader:
    def __init__(self, **changes):
        self.changes = changes

    def stats(self):
        usual = {"num_samples": 640, "wait_s": 1.0, "step_s": 3.0, "num_ready": 2, "num_built": 1, "num_reused": 3}
        more = {
            "num_steps": 10,
            "num_mended": 0,
            "stages": STAGES,
            "epoch_step": 5,
            "epoch_steps": 20,
            "elapsed_s": 8.0,
        }
        return LoaderStats(**{**usual, **more, **self.changes})


def test_metrics_have_names_that_say_what_they_are():
    for metric in METRICS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", metric.name), metric.name
        assert metric.text.endswith("."), metric.name
        assert "loader" not in metric.labels
        for labels, value in metric.values({"train": Loader().stats()}):
            assert len(labels) == 1 + len(metric.labels)
            assert value >= 0
    names = [(metric.name, metric.unit) for metric in METRICS]
    assert len(names) == len(set(names))


def test_loaders_are_watched_by_name_and_not_kept_alive():
    train, test = Loader(), Loader()
    stats = stats_by_name({"train": train, "test": test})
    assert list(stats()) == ["train", "test"]
    del test
    gc.collect()
    assert list(stats()) == ["train"]
    assert list(stats_by_name(train)()) == ["loader"]


@pytest.mark.parametrize("wrong", [3, {"train": 3}, {3: Loader()}, [Loader()]])
def test_what_is_no_loader_is_refused(wrong):
    with pytest.raises(TypeError, match="loader"):
        stats_by_name(wrong)


def test_the_text_parses_with_the_official_client_and_has_every_value():
    prometheus = pytest.importorskip("stoker.metrics.prometheus", reason="no prometheus-client", exc_type=ImportError)
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    loader = Loader()
    registry.register(prometheus.LoaderCollector({"train": loader}))
    text = generate_latest(registry).decode()
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    train = ("loader", "train")
    assert samples["stoker_steps_total", train] == 10
    assert samples["stoker_stall_seconds_total", train] == 1.0
    assert samples["stoker_ready_batches", train] == 2
    assert samples["stoker_epoch_progress_ratio", train] == 0.25
    assert samples["stoker_stage_bytes_total", train, ("stage", "fetch")] == 4096
    assert samples["stoker_stage_seconds_total", train, ("stage", "gather")] == 0.5
    assert samples["stoker_cache_chunks_total", train, ("result", "hit")] == 3
    assert samples["stoker_wait_seconds_total", ("awaited", "batch"), train, ("waiter", "loop")] == 1.0
    types = {family.name: (family.type, family.documentation) for family in text_string_to_metric_families(text)}
    assert types["stoker_steps"][0] == "counter"
    assert types["stoker_ready_batches"][0] == "gauge"
    assert all(help_text for _, help_text in types.values())


def test_the_text_is_openmetrics_too():
    prometheus = pytest.importorskip("stoker.metrics.prometheus", reason="no prometheus-client", exc_type=ImportError)
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    loader = Loader()
    registry.register(prometheus.LoaderCollector(loader))
    families = {f.name: f for f in text_string_to_metric_families(generate_latest(registry).decode())}
    assert families["stoker_stall_seconds"].unit == "seconds"
    assert families["stoker_stage_bytes"].unit == "bytes"


def test_opentelemetry_reads_the_same_figures():
    otel = pytest.importorskip("stoker.metrics.otel", reason="no opentelemetry-api", exc_type=ImportError)
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="no opentelemetry-sdk")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader])
    loader = Loader()
    otel.observe({"train": loader}, provider=provider)
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "stoker"
    found = {metric.name: metric for metric in scope.metrics}
    assert len(found) == len(METRICS)
    (steps,) = found["stoker.steps"].data.data_points
    assert (steps.value, dict(steps.attributes)) == (10, {"loader": "train"})
    assert found["stoker.steps"].data.is_monotonic
    assert found["stoker.stall.time"].unit == "s"
    by_stage = {p.attributes["stage"]: p.value for p in found["stoker.stage.io"].data.data_points}
    assert by_stage == {"fetch": 4096, "gather": 640}
    del loader
    gc.collect()
    assert reader.get_metrics_data() is None or not any(
        metric.data.data_points
        for r in reader.get_metrics_data().resource_metrics
        for s in r.scope_metrics
        for metric in s.metrics
    )
    provider.shutdown()


def test_scalars_are_of_the_time_between_two_looks():
    loader = Loader()
    before = loader.stats()
    loader.changes = {"num_samples": 840, "num_steps": 12, "wait_s": 1.5, "step_s": 3.5, "elapsed_s": 10.0}
    loader.changes["stages"] = STAGES | {"gather": StageTotal(num_calls=12, busy_s=1.5, num_bytes=800)}
    found = loader.stats().since(before).scalars()
    assert found["stall share"] == 0.5
    assert found["samples per second"] == 200.0
    assert found["threads in stage/gather"] == 0.5
    assert found["threads in stage/fetch"] == 0.0
    assert all(isinstance(value, float | int) for value in found.values())


class Nvtx:
    """The package: notes what is entered and left."""

    def __init__(self):
        self.told = []
        self.push_range = self.told.append

    def pop_range(self):
        self.told.append("end")


def test_nvtx_ranges_are_named_by_stage_and_what_it_is_for_and_without_a_gpu_are_the_packages():
    nvtx = Nvtx()
    stages = Stages(ranges=nvtx_ranges(lambda name: {"nvtx": nvtx}[name]))
    with stages.span("batch", subject=(0, 12, -1, -1)):
        for stage, subject in (("open", (0, 12, 3, -1)), ("build", (0, 12, 3, 9)), ("list", (-1, -1, -1, -1))):
            with pytest.raises(KeyError), stages.span(stage, subject=subject):
                raise KeyError
        with stages.span("gather"):
            pass
    expected = ["open, window 3", "end", "build, chunk 9", "end", "list", "end", "gather, step 12", "end"]
    assert nvtx.told == ["batch, step 12", *expected, "end"]


def test_without_nvtx_the_error_names_the_way_out():
    def load(name):
        raise ImportError(name)

    with pytest.raises(ImportError, match=r"pip install 'stoker\[nvtx\]'"):
        nvtx_ranges(load)
