"""A scheduler's SIGTERM ends a command as Ctrl-C does: it says so, and what it began is put away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from tests.processes import python

LAKE = """
    import pyarrow as pa
    import stoker
    from stoker.testing import MemoryStorage, SlowStorage, write_parquet

    inner = MemoryStorage()
    write_parquet(inner, pa.table({"x": list(range(40_000))}), url="lake/a.parquet", row_group_size=250)
    dataset = stoker.Dataset("lake", chunk_size=4000, storage=SlowStorage(inner, latency_s=0.2))
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    # Whoever started the tests in the background of a shell has had Ctrl-C ignored, for all that follows.
    command = """
        import signal, sys
        from stoker.cli import main
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if __name__ == "__main__":
            sys.exit(main())
    """
    (folder / "command.py").write_text(textwrap.dedent(command))
    (folder / "lake.py").write_text(textwrap.dedent(LAKE))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return python(folder / "command.py", *arguments, cwd=folder, env={"TMPDIR": str(folder)}, **pipes)


def ended(
    process: subprocess.Popen[str], which: signal.Signals, *, when: Path, shows: str, num_files: int = 1
) -> tuple[int, str]:
    """Send the signal when so many files of this name lie there, and return exit code and what both streams said."""
    try:
        deadline = time.monotonic() + 60
        while len(list(when.glob(shows))) < num_files:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(which)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out + errors


@pytest.mark.parametrize("which", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_warm_finishes_what_it_has_begun_and_goes_on_from_there(tmp_path, which):
    cache = tmp_path / "cache"
    process = start(tmp_path, "warm", "lake.py:dataset", "--cache", str(cache))
    # The first chunk is built to see what a sample is, before the others are begun.
    code, printed = ended(process, which, when=cache, shows="**/*.safetensors", num_files=2)
    assert code == 130
    assert "Stopped with" in printed
    assert "The same command goes on from there." in printed
    assert [path for path in cache.rglob("*") if path.is_file() and "new" in path.suffix] == []


@pytest.mark.parametrize("which", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_doctor_leaves_nothing(tmp_path, which):
    process = start(tmp_path, "doctor", "lake.py:dataset", "--step-time", "0.01", "--batch-size", "32")
    code, printed = ended(process, which, when=tmp_path, shows="stoker-doctor-*/owner")
    assert code == 130
    assert "interrupted" in printed
    assert list(tmp_path.glob("stoker-doctor-*")) == []


LOADS_A_COMMAND = """
    import signal, sys

    due = [sys.argv.pop(1)]

    def interrupt(event, arguments):
        if event == "import" and arguments[0] in due:
            due.clear()
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.addaudithook(interrupt)
    from stoker.cli import main
    sys.exit(main())
"""


@pytest.mark.parametrize("module", ["stoker.cli.commands", "rich.console", "numpy.dtypes", "stoker.cache"])
def test_ctrl_c_ends_a_command_that_is_still_being_loaded(tmp_path, module):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = python("-c", textwrap.dedent(LOADS_A_COMMAND), module, "cache", "ls", tmp_path, **pipes)
    assert process.communicate(timeout=60) == ("", "interrupted\n")
    assert process.returncode == 130


MAKES_A_LOADER = """
    import json, signal, sys
    import stoker

    signal.signal(signal.SIGINT, signal.default_int_handler)
    url, options = json.loads(sys.argv[1])
    stoker.Loader(stoker.Dataset(url, storage_options=options), batch_size=1)
"""


SLOW_SCHEMES = [pytest.param(scheme, marks=pytest.mark.slow) for scheme in ("gs", "abfss")]


@pytest.mark.parametrize("scheme", ["http", "s3", *SLOW_SCHEMES])
def test_ctrl_c_ends_a_loader_that_is_being_made_from_a_store_that_says_nothing(scheme, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as store:
        place = f"127.0.0.1:{store.getsockname()[1]}"
        key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
        asked = {
            "http": (f"http://{place}/a.parquet", {}),
            "s3": ("s3://box/a", {"endpoint_override": place, "scheme": "http", "access_key": "a", "secret_key": "b"}),
            "gs": ("gs://box/a.parquet", {"endpoint_override": place, "scheme": "http", "anonymous": True}),
            "abfss": (
                "abfss://box@account.dfs.core.windows.net/a.parquet",
                {"account_key": key, "blob_storage_authority": place, "blob_storage_scheme": "http"},
            ),
        }[scheme]
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        process = python("-c", textwrap.dedent(MAKES_A_LOADER), json.dumps(asked), stderr=subprocess.PIPE)
        try:
            store.settimeout(60)
            with contextlib.ExitStack() as stack:
                # Whether anything answers is tried first: that connection brings nothing.
                while not stack.enter_context(store.accept()[0]).recv(1):
                    pass
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
