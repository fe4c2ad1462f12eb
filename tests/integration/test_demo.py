"""The demo from beginning to end, on few rows behind a fast link."""

import io
import json

import pytest
from rich.console import Console

from stoker.demo.run import run_demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def run(folder):
    console = Console(file=io.StringIO(), width=120)
    result = run_demo(
        folder,
        num_rows=8_000,
        num_epochs=2,
        latency_s=0.001,
        bandwidth_bytes_s=50e6,
        html=folder / "demo.html",
        console=console,
    )
    return result, console.file.getvalue()


def test_five_ways_deliver_every_row_and_all_checks_hold(run):
    result, _ = run
    assert [way.key for way in result.ways] == ["plain", "threads", "arrow", "stoker", "ram"]
    assert [(check.text, check.detail) for check in result.checks if not check.holds] == []
    assert all(epoch.num_rows == 8_000 for way in result.ways for epoch in way.epochs)


def test_warm_epochs_read_nothing_through_the_link(run):
    result, _ = run
    ways = {way.key: way for way in result.ways}
    # The footers are of the cache, too: not one byte is fetched again.
    assert [epoch.remote_bytes > 0 for epoch in ways["stoker"].epochs] == [True, False]
    assert [epoch.remote_bytes > 0 for epoch in ways["plain"].epochs] == [True, True]
    assert [epoch.remote_bytes for epoch in ways["ram"].epochs] == [0, 0]


def test_shares_of_time_make_a_whole(run):
    result, _ = run
    for way in result.ways:
        for share in (way.epochs[0], way.later):
            assert share.busy + share.waited + share.other == pytest.approx(1)


def test_the_screen_says_what_is_simulated_and_that_bytes_are_equal(run):
    _, text = run
    assert "simulated: local files behind 1 ms of latency and 50 MB/s" in text
    assert "timed wait" in text or "MLP" in text
    assert "✓ cold, warm and uncached Stoker runs deliver byte-equal batches" in text
    assert "✓ every way delivered every row exactly once an epoch" in text


def test_the_page_is_there_and_only_the_data_set_stays(run, folder):
    assert sorted(path.name for path in folder.iterdir()) == ["data", "demo.html"]
    assert "<!doctype html>" in (folder / "demo.html").read_text()


def test_the_result_is_json(run):
    result, _ = run
    assert json.loads(json.dumps(result.to_json()))["num_rows"] == 8_000
