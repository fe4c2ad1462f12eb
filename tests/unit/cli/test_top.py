"""`stoker top`, of loaders that say what is made up here in files as a loader writes them."""

import contextlib
import fcntl
import io
import json
import re
import time

import pytest
from rich.cells import cell_len
from tests.strategies import write_files
from tests.unit.cli.typed import answer_of, typed

import stoker
from stoker.cli import main

STAGES = {
    "wait": {"num_calls": 1400, "busy_s": 0.9, "num_bytes": 0},
    "step": {"num_calls": 1400, "busy_s": 4.1, "num_bytes": 0},
    "fetch": {"num_calls": 310, "busy_s": 9.5, "num_bytes": 420_000_000},
    "decode": {"num_calls": 60, "busy_s": 2.1, "num_bytes": 1_300_000_000},
    "convert": {"num_calls": 30, "busy_s": 0.31, "num_bytes": 1_300_000_000},
    "publish": {"num_calls": 30, "busy_s": 1.2, "num_bytes": 1_250_000_000},
    "build": {"num_calls": 30, "busy_s": 13.5, "num_bytes": 0},
    "batch": {"num_calls": 1400, "busy_s": 2.6, "num_bytes": 0},
    "gather": {"num_calls": 1400, "busy_s": 2.2, "num_bytes": 3_600_000_000},
}
WAITS = {"loop_for_batch_s": 0.9, "batch_for_window_s": 0.0, "window_for_chunk_s": 1.9, "build_for_bytes_s": 0.0}
RATES = {"samples_per_s": 1_146_880.0, "steps_per_s": 280.0, "left_s": 17.1, "hit_share": 0.988, "num_ready": 3}
CHUNKS = {"num_built": 112, "num_mended": 1, "num_evicted": 0, "epoch": 3, "epoch_step": 4_211, "epoch_steps": 9_000}
STEPS = {"num_steps": 1400, "elapsed_s": 5.0, "busy_share": 0.82, "stall_share": 0.18}
BUSY = STEPS | RATES | CHUNKS | {"waits": WAITS | {"batch_for_room_s": 5.0}, "stages": STAGES}
NOTHING = {"num_steps": 0, "elapsed_s": 0.0, "busy_share": 0.0, "stall_share": 0.0, "samples_per_s": 0.0}
IDLE = BUSY | NOTHING | {"steps_per_s": 0.0, "left_s": None, "stages": {}}
LAKE = "s3://lake/ranking/2026-11/"
LONG = "s3://a-rather-long-bucket-name/with/a/rather/long/path/to/the/data/of/2026-11/" * 2


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_STATUS", str(tmp_path / "status"))
    return tmp_path / "status"


@pytest.fixture
def data(tmp_path):
    return str(write_files(tmp_path / "data", [300]))


@pytest.fixture
def tell(folder, data):
    """Write the file of a running loader for each that is made up, after the example of a real one."""
    with stoker.Loader(stoker.Dataset(data), batch_size=100, prefetch=0) as running:
        next(iter(running))
        (path,) = folder.glob("*.json")
        real = json.loads(path.read_text())
    with contextlib.ExitStack() as stack:

        def call(*loaders):
            for number, changes in enumerate(loaders):
                told = real | {"pid": 1000 + number, "rank": number, "world_size": 8, "dataset": LAKE} | changes
                figures = told.pop("figures", BUSY)
                told |= {part: real[part] | figures for part in ("total", "recent")}
                file = stack.enter_context((folder / f"{path.stem}-{number:02}.json").open("w"))
                fcntl.flock(file, fcntl.LOCK_EX)  # as its process holds it
                file.write(json.dumps(told))
                file.flush()

        yield call


def once():
    """Return what the command prints once."""
    code, out, _ = typed("top", "--once")
    assert code == 0
    return out


class Terminal(io.StringIO):
    """A terminal whose user presses Ctrl-C when the screen has been drawn twice."""

    def isatty(self):
        return True

    def flush(self):
        if not self.closed and self.getvalue().count("Ctrl-C leaves") == 2:
            self.write("\n[Ctrl-C leaves]")
            raise KeyboardInterrupt


def screen(monkeypatch, *, width, height):
    """Return the lines of a terminal on which the command runs until Ctrl-C."""
    for name, value in (("COLUMNS", width), ("LINES", height), ("TERM", "xterm")):
        monkeypatch.setenv(name, str(value))
    with contextlib.redirect_stdout(Terminal()) as terminal:
        assert main(["top", "--interval", "0.1"]) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()).rpartition("\n[Ctrl-C leaves]")[0]
    return ("stoker top" + shown.rpartition("stoker top")[2]).rstrip().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_wider_than_the_terminal_and_no_figure_is_cut(tell, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    tell({}, {"dataset": LONG})
    text = once()
    assert max(cell_len(line) for line in text.splitlines()) <= width
    if width >= 80:
        assert text.count("1,146,880") == 2
        assert LONG[-10:] in text
        assert text.count("…") == 1  # for the beginning of the long name


def test_a_loader_is_shown_with_its_stall_stages_cache_and_time_left(tell):
    tell({"pid": 48213})
    text = once()
    for words in (
        LAKE,
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


def test_waits_lie_in_no_stage_row_and_building_is_not_shown_twice(tell):
    tell({})
    rows = [line.split()[0] for line in once().split("stage ")[1].splitlines()[1:] if line]
    assert rows == ["fetch", "decode", "convert", "pack,", "gather"]


@pytest.mark.parametrize(("width", "height"), [(100, 24), (60, 12)])
def test_many_loaders_share_a_small_screen_in_a_line_each(tell, monkeypatch, width, height):
    tell(*({"dataset": LONG if i % 2 else LAKE} for i in range(8)))
    lines = screen(monkeypatch, width=width, height=height)
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    assert [line.split()[:2] for line in lines if line[:4].isdigit()] == [[str(1000 + i), str(i)] for i in range(8)]


def test_a_loader_that_does_nothing_is_said_to_do_nothing(tell, monkeypatch):
    idle = {"time": time.time() - 74.7, "figures": IDLE}
    tell(*[idle] * 9)
    text = once()
    assert re.search(r"no news for \d+ min \d+ s\b", text)
    assert "no step in the last seconds" in text
    assert sum("no step" in line for line in screen(monkeypatch, width=80, height=12)) == 9


def test_without_a_loader_it_says_so(folder):
    assert "No loader of yours is running" in once()
    assert answer_of("top")["loaders"] == []


def test_the_command_shows_what_runs(folder, data):
    with stoker.Loader(stoker.Dataset(data), batch_size=100, prefetch=0) as running:
        running.set_epoch(7)
        next(iter(running))
        text = once()
    assert "of epoch 7" in text
    assert data[-20:] in text


@pytest.mark.parametrize("interval", ["0", "soon", "-1", "nan"])
def test_a_wrong_interval_is_refused(folder, interval):
    code, _, err = typed("top", "--once", "--interval", interval)
    assert code == 2
    assert "--interval" in err
