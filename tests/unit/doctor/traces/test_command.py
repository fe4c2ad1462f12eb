"""`stoker trace` as it is typed."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
from tests.unit.cli.typed import typed
from tests.unit.doctor.traces.made import Made, rank_of


@pytest.fixture
def logs(tmp_path):
    """Two ranks, of which the second comes late to its collectives; and a file that is none of theirs."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in (0, 1):
        made = Made()
        for step in range(4):
            at = 1000 * step
            made.step(step, at, at + 1000).wait(at, at + 100 + 300 * number)
            made.kernel(at + 400, at + 500).nccl(at + 500 + 300 * number, at + 900)
        made.write(folder / f"rank{number}.json.gz", **rank_of(number))
    (folder / "notes.json").write_text('{"nodes": []}')
    return folder


def test_a_folder_stands_for_its_traces_and_what_is_none_is_left_out(logs):
    code, out, err = typed("trace", logs, "--json")
    assert code == 0
    found = json.loads(out)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert found["straggler"] == 1
    assert "notes.json" in err
    assert "left out" in err


@pytest.mark.parametrize("content", [b'{"notes": 1}', b"no JSON at all", b"[]"])
def test_a_file_is_closed_whatever_became_of_reading_it(tmp_path, content):
    path = tmp_path / "notes.json"
    path.write_bytes(content)
    gc.disable()  # whoever reads it closes it
    try:
        code, _, _ = typed("trace", path)
        assert (code == 0) == (content == b"[]")
        assert path.resolve() not in [fd.resolve() for fd in Path("/proc/self/fd").iterdir()]
    finally:
        gc.enable()


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_what_is_printed_fits_the_terminal(logs, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = typed("trace", logs / "rank0.json.gz", logs / "rank1.json.gz")
    assert code == 0
    assert out.startswith("Rank 1 makes the others wait")
    verdict, _, table = out.partition("\n\n")
    assert verdict
    assert all(len(line) <= int(columns) for line in table.splitlines()), out
    assert "◄ straggler" in out or columns == "60"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["rank0.json.gz", "--name", "data"], 2, "is not WHAT=REGEX"),
        (["rank0.json.gz", "--name", "data=("], 2, "no regular expression"),
        (["notes.json"], 1, 'no "traceEvents"'),
        (["nowhere.json"], 1, "No such file"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(logs, monkeypatch, arguments, code, words):
    monkeypatch.chdir(logs)
    found, out, err = typed("trace", *arguments)
    assert found == code
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_a_folder_without_traces_is_refused(tmp_path):
    code, _, err = typed("trace", tmp_path)
    assert code == 2
    assert "a folder without traces" in err


def test_a_trace_that_stoker_wrote_says_how_long_the_loop_waited(tmp_path):
    made = (
        Made().host("wait", 0, 30, cat="loop").host("step", 30, 100, cat="loop").host("decode", 0, 90, cat="producer")
    )
    code, out, _ = typed("trace", made.write(tmp_path / "own.json"))
    assert code == 0
    assert "waited for data 30 % of the time" in out
