"""Escape sequences, control characters and marks of direction in every name: none reaches a screen, a log, a page."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.testing import example_table

# A title that is set, a screen that is cleared, a line that is forged, a text that runs backwards.
EVIL = "\x1b]0;mine\x07\x1b[2J\x9b31m\rerror\x08\u202egp\u2066\u2028\x7f"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Colours, and what draws a line again.
OURS = re.compile(r"\x1b\[[\d;]*m|\r?\x1b\[(2K|\d*A|\?25[lh])|\r(?=\x1b)")
FORGED = f"{EVIL}\nerror forged"


def check(text: str, *, where: object) -> None:
    """Fail where a text would steer a terminal."""
    found = STEERING.search(text)
    assert found is None, (where, text[max(0, found.start() - 80) : found.start() + 40])


@pytest.fixture
def lake(tmp_path, monkeypatch):
    """A folder whose every name is hostile, and a module that names data sets in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for value in (1, 2):
        folder = tmp_path / f"lake{EVIL}" / f"day{EVIL}={value}{EVIL}"
        folder.mkdir(parents=True)
        table = example_table(60, first=60 * value)
        table = table.rename_columns([f"{name}{EVIL}" if name != "id" else name for name in table.column_names])
        pq.write_table(table, folder / f"{EVIL}{value}.parquet", row_group_size=20)
    return tmp_path / f"lake{EVIL}"


def commands(lake: Path, cache: str):
    order = ["--batch-size", 8, "--shuffle", "--window", 2, "--chunk-size", 1000]
    columns = ["--columns", f'id,"half{EVIL}"']
    yield ["inspect", lake, "--deduplicate", "--compact", "--cache", cache]
    yield ["inspect", lake, *columns, "--json"]
    yield ["inspect", f"{lake}/nothing", *columns]
    yield ["inspect", lake, "--columns", f"missing{EVIL}"]
    yield ["inspect", lake, "--columns", f'"missing{EVIL}"']
    yield ["warm", lake, "--cache", cache, *columns, "--chunk-size", 1000]
    yield ["warm", lake, "--cache", f"{cache}/chunks{EVIL}", *columns, "--json"]
    yield ["ready", lake, "--cache", cache, "--steps", 9, *order]
    yield ["ready", lake, "--cache", cache, "--steps", 9, *order, "--json"]
    yield ["explain", lake, "--step", 1, *order]
    yield ["explain", lake, "--step", 1, *order, "--json"]
    yield ["explain", lake, "--find", f"{EVIL}1.parquet", 0, 3, *order]
    yield ["explain", lake, "--find", f"{EVIL}3.parquet", 0, 3, *order]
    yield ["explain", lake, "--step", 1, *order, "--group-by", f"half{EVIL}"]
    yield ["order", "quality", lake, *order, "--column", f"flag{EVIL}"]
    yield ["vocabulary", lake, "--column", f"word{EVIL}", "--out", f"words{EVIL}.json"]
    yield ["cache", "ls", cache]
    yield ["cache", "ls", cache, "--json"]
    yield ["cache", "verify", cache]
    yield ["cache", "rm", cache, f"{lake}", "--yes"]
    yield ["cache", "ls", f"nowhere{EVIL}"]
    yield ["top", "--once"]
    yield ["trace", f"nothing{EVIL}.json"]
    yield [f"bogus{EVIL}"]


@pytest.mark.parametrize("screen", ["a pipe", "a terminal"])
def test_no_command_prints_what_steers_a_terminal(lake, tmp_path, run, screen, monkeypatch, caplog):
    if screen == "a terminal":
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    codes = set()
    with stoker.Loader(stoker.Dataset(lake, chunk_size=1000), batch_size=8, cache=f"cache{EVIL}") as loader:
        next(iter(loader))
        for arguments in commands(lake, f"cache{EVIL}"):
            code, out, errors = run(*arguments)
            assert "Traceback" not in errors, (arguments, errors)
            assert ("\x1b[" in out + errors) <= (screen == "a terminal")
            check(OURS.sub("", out + errors), where=arguments)
            codes.add(code)
    assert {0, 1, 2} <= codes
    for record in caplog.records:
        check(record.getMessage(), where="log")


def test_errors_logs_and_exporters_have_none(lake, tmp_path, caplog):
    trace = stoker.Trace()
    dataset = stoker.Dataset(lake, chunk_size=1000)
    with stoker.Loader(dataset, batch_size=8, cache="cache", trace=trace) as loader:
        for _ in loader:
            pass
        for text in (str(loader.stats()), str(loader.explain(0)), repr(loader), repr(dataset), str(loader.spec.names)):
            check(text, where="repr")
    trace.write(tmp_path / "trace.json")
    check((tmp_path / "trace.json").read_text(), where="trace")
    for path in (tmp_path / "cache" / "datasets").iterdir():
        check(path.read_text(), where=path)
    victim = next(lake.rglob("*1.parquet"))
    content = bytearray(victim.read_bytes())
    content[100:400] = bytes(300)
    victim.write_bytes(content)
    with caplog.at_level(logging.DEBUG, logger="stoker"):
        for options in ({}, {"on_error": "substitute"}, {"cache": "cache"}):
            try:
                with stoker.Loader(stoker.Dataset(lake, chunk_size=1000), batch_size=8, **options) as loader:
                    list(loader)
            except stoker.StokerError as error:
                check("\n".join([str(error), *getattr(error, "__notes__", ())]), where=options)
    assert any("left out" in record.getMessage() for record in caplog.records)
    for record in caplog.records:
        check(record.getMessage(), where="log")
        assert "\n" not in record.getMessage()


def test_a_name_with_a_line_break_forges_no_line_of_a_log(tmp_path, caplog):
    folder = tmp_path / f"a{FORGED}"
    folder.mkdir()
    pq.write_table(pa.table({"x": np.arange(40)}), folder / "0.parquet", row_group_size=10)

    def transform(table):
        if 13 in table["x"].to_pylist():
            raise ValueError(FORGED)
        return {"x": table["x"].to_numpy()}

    dataset = stoker.Dataset(folder, transform=transform, transform_version="1", chunk_size=80)
    with stoker.Loader(dataset, batch_size=8, on_error="substitute") as loader:
        list(loader)
    (text,) = (record.getMessage() for record in caplog.records if "left out" in record.getMessage())
    assert "\n" not in text
    check(text, where="log")


def test_the_doctor_and_its_page_show_none(lake, tmp_path, run):
    page = tmp_path / "page.html"
    code, out, errors = run(
        "doctor", lake, "--columns", f'id,"half{EVIL}"', "--batch-size", 8, "--budget", 1, "--step-time", "0.001",
        "--html", page,
    )  # fmt: skip
    check(out + errors, where="doctor")
    assert code == 0, errors
    check(page.read_text(), where="page")


def test_prometheus_gets_none(lake):
    client = pytest.importorskip("prometheus_client")
    from stoker.metrics import prometheus

    with stoker.Loader(stoker.Dataset(lake, chunk_size=1000), batch_size=8) as loader:
        list(loader)
        registry = client.CollectorRegistry()
        registry.register(prometheus.LoaderCollector({f"train{EVIL}": loader}))
        check(client.generate_latest(registry).decode().replace("\\n", ""), where="prometheus")
