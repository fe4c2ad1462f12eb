"""A loader's figures, scraped: by a plain HTTP client, and by Prometheus itself where it is installed."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from tests.strategies import write_files

from stoker import Dataset, Loader

prometheus = pytest.importorskip("stoker.metrics.prometheus", reason="no prometheus-client", exc_type=ImportError)
parser = pytest.importorskip("prometheus_client.parser", reason="no prometheus-client")


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def loader(tmp_path):
    write_files(tmp_path / "data", [300, 200])
    with Loader(Dataset(str(tmp_path / "data")), batch_size=64, shuffle=True, cache=tmp_path / "cache") as loader:
        yield loader


def samples(text):
    return {
        (sample.name, sample.labels["loader"], sample.labels.get("stage")): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_is_scraped_is_what_the_loader_says(loader):
    num_steps = sum(1 for _ in loader)
    with prometheus.serve({"train": loader}, port=0) as url:
        found = samples(get(url))
        stats = loader.stats()
    assert found["stoker_steps_total", "train", None] == num_steps == len(loader)
    assert found["stoker_samples_total", "train", None] == 500
    assert found["stoker_stall_seconds_total", "train", None] == pytest.approx(stats.wait_s)
    assert found["stoker_epoch", "train", None] == 1
    assert found["stoker_stage_bytes_total", "train", "gather"] == stats.stages["gather"].num_bytes > 0


def test_counters_grow_while_it_trains(loader):
    with prometheus.serve(loader, port=0) as url:
        seen = [samples(get(url))["stoker_steps_total", "loader", None] for _ in loader]
    assert seen == list(range(1, len(loader) + 1))


def test_behind_the_block_nobody_answers(loader):
    with prometheus.serve(loader, port=0) as url:
        get(url)
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_a_port_that_is_taken_is_named(loader):
    with prometheus.serve(loader, port=0) as url:
        port = urllib.parse.urlsplit(url).port
        again = prometheus.serve(loader, port=port)
        with pytest.raises(OSError, match=r"in use") as raised:
            again.__enter__()
    assert f"port {port} is taken" in raised.value.__notes__[0]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: apt-get install prometheus")
def test_prometheus_itself_scrapes_a_training_loader(loader, tmp_path):
    with prometheus.serve({"train": loader}, port=0) as url:
        config = tmp_path / "prometheus.yml"
        target = url.removeprefix("http://").removesuffix("/metrics")
        config.write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            f"scrape_configs: [{{job_name: stoker, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = (tmp_path / "prometheus.log").open("wb")
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
            env={"PATH": os.environ["PATH"]},
        )
        try:
            num_steps = 0
            deadline = time.monotonic() + 60
            want = {"up": 0, "stoker_steps_total": 3 * len(loader), 'stoker_stage_bytes_total{stage="gather"}': 1}
            while True:
                if num_steps < 3 * len(loader):
                    num_steps += sum(1 for _ in loader)
                found = {query: ask(port, query) for query in want}
                if all(value is not None and value >= want[query] for query, value in found.items()):
                    break
                assert server.poll() is None, (tmp_path / "prometheus.log").read_text()
                assert time.monotonic() < deadline, (found, (tmp_path / "prometheus.log").read_text())
        finally:
            server.terminate()
            server.wait(30)
            log.close()
    assert found["up"] == 1
    assert found["stoker_steps_total"] == num_steps


def ask(port, query):
    """Return the one value of a query, None where Prometheus has none yet."""
    try:
        answer = json.loads(get(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"))
    except OSError:
        return None
    result = answer["data"]["result"]
    if not result:
        return None
    (only,) = result
    return float(only["value"][1])
