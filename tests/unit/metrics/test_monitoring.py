"""What a loader says it has done, and what monitoring systems are told of it; Prometheus has a test of its own."""

import dataclasses
import gc
import re
import sys
from types import SimpleNamespace

import pytest

from stoker import LoaderStats, Trace

USUAL = {"num_steps": 0, "num_samples": 0, "wait_s": 0.0, "num_ready": 0, "stages": {}}


def stats(**changes):
    return LoaderStats(**(USUAL | changes))


def stages_of(**told):
    """Stages, each with the pieces of work it did, the seconds they took, and the bytes."""
    stages = Trace().stages("data")
    for stage, (num_calls, busy_s, num_bytes) in told.items():
        stages(stage, 0, round(busy_s * 1e9), num_bytes, num_calls=num_calls)
    return stages.totals()


def test_shares_and_rates_are_of_the_loops_own_time():
    some = stats(
        num_steps=10, num_samples=640, wait_s=1.0, step_s=3.0, elapsed_s=100.0, num_built=4, num_missed=1, num_reused=3
    )
    assert some.stall_share == 0.25
    assert some.busy_share == 0.75
    assert some.samples_per_s == 160.0
    assert some.steps_per_s == 2.5
    assert some.hit_share == 0.75


def test_before_the_first_batch_everything_is_nothing():
    none = stats()
    assert (none.stall_share, none.busy_share, none.samples_per_s, none.hit_share, none.left_s) == (0, 0, 0, 0, None)
    assert (none.fetched_bytes, none.num_building) == (0, 0)


def test_time_left_is_that_of_the_steps_left():
    assert stats(num_steps=10, wait_s=1.0, step_s=4.0, epoch_step=10, epoch_steps=30).left_s == 10.0


def test_it_says_who_waits_for_whom():
    stages = {"wait_window": (1, 1.0, 0), "wait_chunk": (1, 2.0, 0), "fetch": (1, 4.0, 0), "wait_room": (1, 8.0, 0)}
    waits = stats(wait_s=0.5, stages=stages_of(**stages)).waits
    assert (waits.loop_for_batch_s, waits.batch_for_window_s, waits.window_for_chunk_s) == (0.5, 1.0, 2.0)
    assert (waits.build_for_bytes_s, waits.batch_for_room_s) == (4.0, 8.0)


def test_the_time_between_two_looks_is_a_difference_and_what_holds_now_holds():
    earlier, later = stages_of(fetch=(3, 1.5, 100)), stages_of(fetch=(4, 2.0, 150), decode=(1, 0.25, 0))
    before = stats(num_steps=5, num_samples=50, wait_s=1.0, stages=earlier, elapsed_s=10.0, num_ready=4)
    after = dataclasses.replace(
        before,
        num_steps=8,
        num_samples=80,
        wait_s=1.25,
        elapsed_s=12.0,
        num_ready=1,
        epoch=1,
        active={"fetch": 2, "build": 2},
        stages=later,
    )
    found = after.since(before)
    assert (found.num_steps, found.num_samples, found.wait_s, found.elapsed_s) == (3, 30, 0.25, 2.0)
    assert (found.num_ready, found.epoch, found.num_building) == (1, 1, 2)
    assert found.stages == stages_of(fetch=(1, 0.5, 50), decode=(1, 0.25, 0))
    assert found.fetched_bytes == 50


def test_every_number_is_either_subtracted_or_said_as_it_is():
    """A field that is added later must not be forgotten in `since`."""
    names = {field.name for field in dataclasses.fields(LoaderStats)} - {"stages", "active"}
    one = LoaderStats(**dict.fromkeys(names, 1), stages={}, active={})
    three = LoaderStats(**dict.fromkeys(names, 3), stages={}, active={})
    found = three.since(one)
    now = {"num_ready", "epoch", "epoch_step", "epoch_steps"}
    assert {name for name in names if getattr(found, name) == 3} == now
    assert {name for name in names if getattr(found, name) == 2} == names - now


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats().num_steps = 1


# ---------------------------------------------------------------------- as others are told

STAGES = stages_of(fetch=(4, 2.0, 4096), gather=(10, 0.5, 640))
DONE = {
    "num_steps": 10,
    "num_samples": 640,
    "wait_s": 1.0,
    "step_s": 3.0,
    "num_ready": 2,
    "num_built": 1,
    "num_reused": 3,
    "epoch_step": 5,
    "epoch_steps": 20,
    "elapsed_s": 8.0,
    "stages": STAGES,
}


class Loader:
    def __init__(self, **changes):
        self.changes = changes

    def stats(self):
        return stats(**(DONE | self.changes))


@pytest.fixture
def prometheus():
    return pytest.importorskip("stoker.metrics.prometheus", reason="no prometheus-client", exc_type=ImportError)


def test_loaders_are_watched_by_name_and_not_kept_alive(prometheus):
    train, test = Loader(), Loader()
    both, one = prometheus.LoaderCollector({"train": train, "test": test}), prometheus.LoaderCollector(train)

    def names(collector):
        return {sample.labels["loader"] for family in collector.collect() for sample in family.samples}

    assert names(both) == {"train", "test"}
    del test
    gc.collect()
    assert names(both) == {"train"}
    assert names(one) == {"loader"}


@pytest.mark.parametrize("wrong", [3, {"train": 3}, {3: Loader()}, [Loader()]])
def test_what_is_no_loader_is_refused(prometheus, wrong):
    with pytest.raises(TypeError, match="loader"):
        prometheus.LoaderCollector(wrong)


def test_the_text_parses_with_the_official_client_and_has_every_value(prometheus):
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    loader = Loader()
    registry.register(prometheus.LoaderCollector({"train": loader}))
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
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
    assert families["stoker_steps"].type == "counter"
    assert families["stoker_ready_batches"].type == "gauge"
    for name, family in families.items():
        assert re.fullmatch(r"stoker(_[a-z]+)+", name)
        assert family.documentation.endswith("."), name
    assert min(samples.values()) >= 0


def test_the_text_is_openmetrics_too(prometheus):
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    loader = Loader()
    registry.register(prometheus.LoaderCollector(loader))
    families = {f.name: f for f in text_string_to_metric_families(generate_latest(registry).decode())}
    assert families["stoker_stall_seconds"].unit == "seconds"
    assert families["stoker_stage_bytes"].unit == "bytes"


def test_opentelemetry_reads_the_same_figures(prometheus):
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
    assert len(found) == len([*prometheus.LoaderCollector(loader).collect()])
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
    loader.changes["stages"] = STAGES | stages_of(gather=(12, 1.5, 800))
    found = loader.stats().since(before).scalars()
    assert found["stall share"] == 0.5
    assert found["samples per second"] == 200.0
    assert found["threads in stage/gather"] == 0.5
    assert found["threads in stage/fetch"] == 0.0
    assert all(isinstance(value, float | int) for value in found.values())


# ---------------------------------------------------------------------- ranges in a GPU profiler


def test_nvtx_ranges_are_named_by_stage_and_what_it_is_for_and_without_a_gpu_are_the_packages(monkeypatch):
    told = []
    monkeypatch.setitem(sys.modules, "torch", None)  # whose ranges they are where it has CUDA
    package = SimpleNamespace(push_range=told.append, pop_range=lambda: told.append("end"))
    monkeypatch.setitem(sys.modules, "nvtx", package)
    stages = Trace(nvtx=True).stages("data")
    with stages.span("batch", subject=(0, 12, -1, -1)):
        for stage, subject in (("open", (0, 12, 3, -1)), ("build", (0, 12, 3, 9)), ("list", (-1, -1, -1, -1))):
            with pytest.raises(KeyError), stages.span(stage, subject=subject):
                raise KeyError
        with stages.span("gather"):
            pass
    expected = ["open, window 3", "end", "build, chunk 9", "end", "list", "end", "gather, step 12", "end"]
    assert told == ["batch, step 12", *expected, "end"]


def test_without_nvtx_the_error_names_the_way_out(monkeypatch):
    for name in ("torch", "nvtx"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'stoker\[nvtx\]'"):
        Trace(nvtx=True)
