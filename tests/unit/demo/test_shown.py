"""What the terminal and the page say about given numbers."""

import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from stoker.demo.results import ARROW, PLAIN, RAM, STOKER, THREADS, Check, DemoResult, EpochResult, WayResult
from stoker.demo.story import conclusion, demo_html, print_demo


def epoch(busy):
    wall_s = 2.0 / busy
    return EpochResult(
        num_rows=409_600,
        checksum=1,
        wall_s=wall_s,
        busy_s=2.0,
        waited_s=wall_s - 2.0,
        cpu_s=1.0,
        remote_bytes=0,
    )


def way(key, name, *busy):
    epochs = tuple(map(epoch, busy))
    return WayResult(key=key, name=name, how=f"how <{name}> works", epochs=epochs)


@pytest.fixture
def result():
    return DemoResult(
        ways=(
            way(PLAIN, "plain Parquet reads", 0.16, 0.2),
            way(THREADS, "4 × the threads", 0.17, 0.2),
            way(ARROW, "Arrow on SSD", 0.15, 0.5),
            way(STOKER, "Stoker", 0.18, 0.98),
            way(RAM, "batches in RAM", 1.0, 1.0),
        ),
        checks=(Check(text="rows are whole", holds=True, detail="all of them"),),
        num_rows=409_600,
        num_epochs=2,
        setting={"accelerator": "simulated: each step is a timed wait of 20.00 ms", "remote store": "simulated: slow"},
        machine={"processor": "A & B", "cores": "2"},
        wall_s=100.0,
        when="2026-11-21",
        notes=("a note",),
    )


def printed(result, *, width):
    console = Console(file=io.StringIO(), width=width)
    print_demo(result, console, html=None)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_names_every_way_with_its_figures_at_any_width(result, width):
    text = printed(result, width=width)
    for shown in result.ways:
        line = next(line for line in text.splitlines() if line.strip().startswith(shown.name))
        assert f"{shown.later.busy:.1%}" in line
        assert f"{shown.later.rows_per_s:,.0f}" in line
        assert len(line) <= width
    assert "✓ rows are whole" in text
    assert "98% busy: 98% of what batches in RAM do, and 4.9 times" in text


def test_a_failed_check_and_a_missed_goal_are_said(result):
    failed = replace(
        result,
        ways=(*result.ways[:3], way(STOKER, "Stoker", 0.18, 0.6), result.ways[4]),
        checks=(Check(text="rows are whole", holds=False, detail="one is missing"),),
    )
    text = printed(failed, width=100)
    assert "✗ rows are whole" in text
    assert "below the 95%" in text
    assert not failed.checks_hold
    assert "✗ rows are whole: one is missing" in demo_html(failed)


def test_the_conclusion_speaks_of_later_epochs(result):
    assert conclusion(result)[0].startswith("Stoker's later epochs keep the accelerator 98% busy")


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(result):
    page = demo_html(result)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert not {"src", "href"} & {name for name, _ in tags.attributes}
    assert "url(" not in page
    assert "@import" not in page


def test_the_page_holds_the_figures_and_escapes_what_it_is_given(result):
    page = demo_html(result)
    assert "A &amp; B" in page
    assert "how &lt;Stoker&gt; works" in page
    for shown in result.ways:
        assert f"{shown.later.busy:.1%}" in page
    assert "prefers-color-scheme: dark" in page
    assert "A note." in page


def test_the_result_can_be_written_as_json_with_the_figures_worked_out(result):
    data = json.loads(json.dumps(result.to_json()))
    assert data["of_ceiling"] == pytest.approx(0.98)
    assert data["times_plain"] == pytest.approx(4.9)
    assert data["ways"][3]["later"]["busy"] == pytest.approx(0.98)
    assert data["checks"][0]["holds"] is True
