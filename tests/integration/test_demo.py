"""The demo from beginning to end, on few rows behind a fast link; the data it writes, and what learns from them."""

import importlib.util
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from tests.unit.cli.typed import typed
from tests.unit.doctor.pages import Page

from stoker.demo.data import make_data
from stoker.demo.run import run_demo
from stoker.demo.story import demo_html, print_demo

NUM_ROWS = 9_000
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_ranking.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def run(folder):
    """The result of the demo, and what it printed."""
    console, link = Console(file=io.StringIO(), width=120), {"latency_s": 0.001, "bandwidth_bytes_s": 50e6}
    result = run_demo(folder, num_rows=NUM_ROWS, num_epochs=2, html=folder / "demo.html", console=console, **link)
    return result, console.file.getvalue()


@pytest.fixture(scope="module")
def table(run, folder):
    """The rows that were written."""
    return pa.concat_tables([pq.read_table(path) for path in sorted((folder / "data").glob("*.parquet"))])


# ---------------------------------------------------------------------- what it found


def test_five_ways_deliver_every_row_and_all_checks_hold(run, table):
    result, _ = run
    assert [way.key for way in result.ways] == ["plain", "threads", "arrow", "stoker", "ram"]
    assert [(check.text, check.detail) for check in result.checks if not check.holds] == []
    checksum = int(table["dense_00"].to_numpy().view(np.uint32).sum(dtype=np.uint64))
    assert {(epoch.num_rows, epoch.checksum) for way in result.ways for epoch in way.epochs} == {(NUM_ROWS, checksum)}


def test_warm_epochs_read_nothing_through_the_link(run):
    result, _ = run
    has_read = {way.key: [epoch.remote_bytes > 0 for epoch in way.epochs] for way in result.ways}
    # The footers are of the cache, too: not one byte is fetched again.
    assert has_read["stoker"] == has_read["arrow"] == [True, False]
    assert has_read["plain"] == has_read["threads"] == [True, True]
    assert has_read["ram"] == [False, False]


def test_shares_of_time_make_a_whole(run):
    result, _ = run
    for way in result.ways:
        for share in (way.epochs[0], way.later):
            assert share.busy + share.waited + share.other == pytest.approx(1)


def test_json_has_the_figures_that_are_worked_out(run):
    result, _ = run
    found = json.loads(json.dumps(result.to_json()))
    ways = {way["key"]: way["later"] for way in found["ways"]}
    assert found["num_rows"] == NUM_ROWS
    assert found["checks_hold"]
    assert found["of_ceiling"] == pytest.approx(ways["stoker"]["busy"] / ways["ram"]["busy"])
    assert found["times_plain"] == pytest.approx(ways["stoker"]["rows_per_s"] / ways["plain"]["rows_per_s"])


# ---------------------------------------------------------------------- what is shown


def printed(result, *, width):
    console = Console(file=io.StringIO(), width=width)
    print_demo(result, console, html=None)
    return console.file.getvalue()


def test_the_screen_says_what_is_simulated_and_that_bytes_are_equal(run):
    _, text = run
    assert "simulated: local files behind 1 ms of latency and 50 MB/s" in text
    assert "timed wait" in text or "MLP" in text
    assert "✓ cold, warm and uncached Stoker runs deliver byte-equal batches" in text
    assert "✓ every way delivered every row exactly once an epoch" in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_names_every_way_with_its_figures_at_any_width(run, width):
    result, _ = run
    lines = printed(result, width=width).splitlines()
    for shown in result.ways:
        line = next(line for line in lines if line.strip().startswith(shown.name))
        assert f"{shown.later.busy:.1%}" in line
        assert f"{shown.later.rows_per_s:,.0f}" in line
        assert len(line) <= width


def test_a_failed_check_and_a_missed_goal_are_said(run):
    result, _ = run
    slow = replace(result.ways[3].later, busy_s=0.0)
    failed = replace(
        result,
        ways=(*result.ways[:3], replace(result.ways[3], epochs=(slow,)), result.ways[4]),
        checks=(replace(result.checks[0], holds=False, detail="one is missing"),),
    )
    text = printed(failed, width=100)
    assert f"✗ {result.checks[0].text}" in text
    assert "below the 95%" in text
    assert not failed.checks_hold
    assert "one is missing" in demo_html(failed)


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(run, folder):
    page = Page((folder / "demo.html").read_text())
    assert page.html.startswith("<!doctype html>")
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not {"src", "href"} & {name for _, name, _ in page.attributes}
    assert "url(" not in page.style
    assert "@import" not in page.style
    assert "prefers-color-scheme: dark" in page.style


def test_the_page_holds_the_figures_and_escapes_what_it_is_given(run):
    result, _ = run
    page = demo_html(replace(result, machine={"processor": "A & <B>"}, notes=("a note",)))
    assert "A &amp; &lt;B&gt;" in page
    assert "A note." in page
    for shown in result.ways:
        assert f"{shown.later.busy:.1%}" in page


def test_only_the_data_set_and_the_page_stay(run, folder):
    assert sorted(path.name for path in folder.iterdir()) == ["data", "demo.html"]


# ---------------------------------------------------------------------- the data


def test_the_files_hold_the_rows_asked_for_without_nulls(table):
    assert len(table) == NUM_ROWS
    assert all(table[name].null_count == 0 for name in table.column_names)


def test_a_query_has_about_20_candidates_that_lie_together_and_share_its_features(table):
    query_id = table["query_id"].to_numpy()
    queries, counts = np.unique(query_id, return_counts=True)
    assert np.array_equal(np.sort(query_id), query_id)
    assert counts.max() <= 30
    assert 17 < len(query_id) / len(queries) < 22
    same_query = np.flatnonzero(query_id[1:] == query_id[:-1])
    shared = ["country", "query_embedding", "clicked_items", "viewed_categories", "id_00", "id_19"]
    for name in [*shared, *(f"context_{i}" for i in range(6))]:
        column = table[name].combine_chunks()
        assert column.take(same_query).equals(column.take(same_query + 1)), name


def test_ids_and_histories_stay_within_their_bounds_and_small_ones_are_all_seen(table):
    ids = {i: table[f"id_{i:02}"].to_numpy() for i in range(20)}
    assert all(column.min() >= 0 for column in ids.values())
    assert [ids[i].max() < most for i, most in ((0, 24), (2, 60), (10, 20_000), (19, 20_000_000))] == [True] * 4
    assert len(np.unique(ids[2])) == 60
    assert len(np.unique(ids[18])) > 2_000
    lengths = pc.list_value_length(table["clicked_items"]).to_numpy()
    assert (lengths.min(), lengths.max()) == (0, 50)


def test_labels_are_a_minority_that_depends_on_the_features(table):
    label, score = table["label"].to_numpy(), table["dense_00"].to_numpy()
    assert 0.1 < label.mean() < 0.4
    assert score[label == 1].mean() > score[label == 0].mean() + 0.2


def test_a_complete_data_set_is_found_again_and_any_other_is_written_anew(tmp_path):
    def made(num_rows=200):
        data = make_data(tmp_path / "data", num_rows=num_rows)
        return data.was_there, [path.read_bytes() for path in data.paths]

    was_there, files = made()
    assert (was_there, made()) == (False, (True, files))
    (tmp_path / "data" / "part-00003.parquet").write_bytes(b"cut off")
    assert made() == (False, files)
    (tmp_path / "data" / "complete.json").unlink()
    assert made() == (False, files)
    assert made(300)[0] is False


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--rows", 200], 1, "thesis.txt"),
        (["--rows", 10], 2, "at least 32 rows"),
        (["--rows", 200, "--html", "."], 2, "is a folder"),
    ],
)
def test_what_cannot_be_demonstrated_is_refused_and_files_of_others_are_left_alone(tmp_path, arguments, code, words):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")
    found, _, err = typed("demo", "--folder", tmp_path, "--html", tmp_path / "demo.html", *arguments)
    assert found == code
    assert words in err
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["years of work"]


# ---------------------------------------------------------------------- the example that learns from it


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("train_ranking", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.torch
def test_the_example_ranks_rows_it_has_not_seen_better_than_guessing(example, run, folder, tmp_path, capsys):
    found = example.train(folder / "data", epochs=2, batch_size=512, cache=tmp_path / "cache")
    assert found[-1] > 0.6
    assert capsys.readouterr().out.count("AUC") == 2


@pytest.mark.torch
def test_auc_is_one_for_a_perfect_order_and_a_half_for_none(example):
    import torch

    labels = torch.tensor([0, 0, 1, 1])
    assert example.auc(torch.tensor([0.1, 0.2, 0.3, 0.4]), labels) == 1
    assert example.auc(torch.tensor([0.4, 0.3, 0.2, 0.1]), labels) == 0
    assert example.auc(torch.tensor([0.1, 0.4, 0.2, 0.3]), labels) == 0.5
