"""`stoker top`, drawn from figures made up here."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.strategies import write_files

import stoker
from stoker import LoaderStats
from stoker.cli import main
from stoker.cli.top import screen
from stoker.metrics.stages import StageTotal
from stoker.metrics.status import figures

STAGES = {
    "wait": StageTotal(num_calls=1400, busy_s=0.9),
    "step": StageTotal(num_calls=1400, busy_s=4.1),
    "fetch": StageTotal(num_calls=310, busy_s=9.5, num_bytes=420_000_000),
    "decode": StageTotal(num_calls=60, busy_s=2.1, num_bytes=1_300_000_000),
    "transform": StageTotal(num_calls=30, busy_s=0.4, num_bytes=1_300_000_000),
    "convert": StageTotal(num_calls=30, busy_s=0.31, num_bytes=1_300_000_000),
    "publish": StageTotal(num_calls=30, busy_s=1.2, num_bytes=1_250_000_000),
    "build": StageTotal(num_calls=30, busy_s=13.5),
    "open": StageTotal(num_calls=2, busy_s=0.2),
    "wait_chunk": StageTotal(num_calls=5, busy_s=1.9),
    "batch": StageTotal(num_calls=1400, busy_s=2.6),
    "gather": StageTotal(num_calls=1400, busy_s=2.2, num_bytes=3_600_000_000),
    "wait_room": StageTotal(num_calls=900, busy_s=5.0),
}


def stats(**changes):
    usual = {
        "num_steps": 1400,
        "num_samples": 5_734_400,
        "wait_s": 0.9,
        "step_s": 4.1,
        "elapsed_s": 5.0,
        "num_ready": 3,
        "num_built": 112,
        "num_reused": 9_410,
        "num_missed": 112,
        "num_mended": 1,
        "num_evicted": 0,
        "epoch": 3,
        "epoch_step": 4_211,
        "epoch_steps": 9_000,
        "stages": STAGES,
    }
    return LoaderStats(**(usual | changes))


def loader(dataset="s3://lake/ranking/2026-11/", *, rank=0, age_s=0.4, pid=48213, **changes):
    about = {"dataset": dataset, "rank": rank, "world_size": 8, "global_batch_size": 32768}
    process = {"pid": pid, "host": "node7", "command": "train.py --config ranking.yaml", "age_s": age_s}
    figure = figures(stats(**changes))
    return process | about | {"total": figure, "recent": figure}


def drawn(loaders, *, width, height=None):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(screen(loaders, width=width, height=height, time_s=0.0))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nothing_is_wider_than_the_terminal_and_no_figure_is_cut(width):
    long = "s3://a-rather-long-bucket-name/with/a/rather/long/path/to/the/data/of/2026-11/" * 2
    for loaders in ([loader()], [loader(long)], [loader(long, rank=i, pid=i) for i in range(20)]):
        for height in (None, 30):
            text = drawn(loaders, width=width, height=height)
            assert max(cell_len(line) for line in text.splitlines()) <= width
            if width >= 80:
                assert "1,146,880" in text
                assert "…" not in text.replace("…/", "").split("stage")[0] or long[-10:] in text


def test_a_loader_is_shown_with_its_stall_stages_cache_and_time_left():
    text = drawn([loader()], width=100)
    for words in (
        "s3://lake/ranking/2026-11/",
        "rank 0 of 8 · pid 48213",
        "82.0% busy",
        "18.0% stall",
        "1,146,880 samples/s · 280 steps/s · 3 batches ready",
        "46.8% of epoch 3",
        "17 s left",
        "98.8% hits · 112 built · 1 mended",
        "batch for room in the queue 1.00",
        "84.0 MB",
    ):
        assert words in text, words
    (fetch,) = [line for line in text.splitlines() if line.startswith("fetch")]
    assert fetch.split()[1] == "1.90"  # threads at it


def test_waits_lie_in_no_stage_row_and_building_is_not_shown_twice():
    rows = drawn([loader()], width=100).split("stage")[1]
    for hidden in ("wait", "build", "step"):
        assert hidden not in rows


def test_many_loaders_share_a_small_screen_in_a_line_each():
    text = drawn([loader(rank=i, pid=1000 + i) for i in range(8)], width=100, height=24)
    lines = text.rstrip().splitlines()
    assert len(lines) <= 24
    assert [line.split()[:2] for line in lines[3:]] == [[str(1000 + i), str(i)] for i in range(8)]


def test_a_loader_that_does_nothing_is_said_to_do_nothing():
    idle = loader(age_s=75.0, num_steps=0, num_samples=0, wait_s=0.0, step_s=0.0, stages={}, elapsed_s=0.0)
    text = drawn([idle], width=80)
    assert "no news for 1 min 15 s" in text
    assert "no step in the last seconds" in text
    assert "no step" in drawn([idle] * 9, width=80, height=10)


def test_without_a_loader_it_says_so():
    assert "No loader of yours is running" in drawn([], width=80)


# ---------------------------------------------------------------------- the command


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_STATUS", str(tmp_path / "status"))
    return tmp_path / "status"


def test_the_command_shows_what_runs_once(folder, tmp_path, capsys):
    data = str(write_files(tmp_path / "data", [300]))
    with stoker.Loader(stoker.Dataset(data), batch_size=100, prefetch=0) as running:
        running.set_epoch(7)
        next(iter(running))
        assert main(["top", "--once"]) == 0
    out = capsys.readouterr().out
    assert "of epoch 7" in out
    assert data[-20:] in out


@pytest.mark.parametrize("interval", ["0", "soon", "-1", "nan"])
def test_a_wrong_interval_is_refused(folder, capsys, interval):
    assert main(["top", "--once", "--interval", interval]) == 2
    assert "--interval" in capsys.readouterr().err
