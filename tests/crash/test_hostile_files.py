"""Small files that claim much, or become much: an error that names them, before the memory is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.mutants.files import without_sizes

CHUNK_BYTES, NUM_THREADS = 32 << 20, 2
# What is promised: a chunk for each thread, and this much.
BOUND_BYTES = NUM_THREADS * CHUNK_BYTES + (256 << 20)

LOADS = """
import json, sys
from pathlib import Path
import stoker
from stoker.testing import MemoryStorage

def peak_bytes():  # getrusage's peak begins with that of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024

before = peak_bytes()
for path, place in json.load(sys.stdin):
    found = None
    storage = None if place == "here" else MemoryStorage({path: open(path, "rb").read()})
    try:
        with stoker.Loader(stoker.Dataset(path, storage=storage), batch_size=8, num_threads=int(sys.argv[1])) as loader:
            num_rows = sum(1 for batch in loader for _ in batch[loader.spec.names[0]])
    except stoker.StokerError as error:
        found = [type(error).__name__, str(error)]
    print(json.dumps({"peak_bytes": peak_bytes() - before, "error": found}))
"""


def long_pages(path: Path, kind: str, num_rows: int = 120) -> None:
    """A page of 120 MB, or another number, in some kilobytes."""
    word = "x" * 1_000_000
    lists, structs = [[word] * 4] * (num_rows // 4), [{"s": word}] * num_rows
    values = lists if kind == "list" else structs if kind == "struct" else [word] * num_rows
    options = {"use_dictionary": False, "write_statistics": False, "data_page_size": 1 << 30}
    pq.write_table(pa.table({"s": values}), path, compression="zstd", **options)


def long_word(path: Path, kind: str) -> None:
    """A dictionary of short words and a long one, which stands for nearly all rows: 400 MB in some kilobytes."""
    words = pa.array(["x" * 400_000, *(f"w{i}" for i in range(2000))])
    indices = np.zeros(3000, np.int32)
    indices[-2000:] = np.arange(1, 2001)
    column = pa.DictionaryArray.from_arrays(pa.array(indices), words)
    if kind == "list":
        column = pa.ListArray.from_arrays(pa.array(np.arange(0, 3001, 10, dtype=np.int32)), column)
    elif kind == "struct":
        column = pa.StructArray.from_arrays([column], ["s"])
    codec = "gzip" if kind == "other codec" else "zstd"
    pq.write_table(pa.table({"s": column}), path, compression=codec, write_statistics=False, store_schema=False)
    path.write_bytes(without_sizes(path.read_bytes()))


def shared_beginnings(path: Path) -> None:
    """Strings of which each is the one before and a sign more: 300 MB in some kilobytes."""
    words = ["x" * 100_000 + "y" * i for i in range(3000)]
    options = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY", "write_statistics": False}
    pq.write_table(pa.table({"s": words}), path, compression="zstd", **options)
    path.write_bytes(without_sizes(path.read_bytes()))


def shared_beginnings_of_structs(path: Path) -> None:
    """The same in structs, of a row group that is known to be huge: it streams."""
    words = [{"s": "x" * 100_000 + "y" * i} for i in range(6000)]
    options = {"use_dictionary": False, "column_encoding": {"s.s": "DELTA_BYTE_ARRAY"}, "write_statistics": False}
    pq.write_table(
        pa.table({"s": words}), path, compression="zstd", data_page_size=1 << 30, max_rows_per_page=10_000, **options
    )


def long_footer(path: Path) -> None:
    """A footer that is nearly all of its file."""
    table = pa.table({"x": [1, 2, 3]}).replace_schema_metadata({"note": "x" * (12 << 20)})
    pq.write_table(table, path)


FILES = {
    "page": (lambda path: long_pages(path, "plain"), "SourceCorruptError", "column s: a page of"),
    "page of a list": (lambda path: long_pages(path, "list"), "SourceCorruptError", "column s.list.element: a page of"),
    "page of a struct": (lambda path: long_pages(path, "struct"), "SourceCorruptError", "column s.s: a page of"),
    **{
        f"word of a dictionary, {kind}": (
            lambda path, kind=kind: long_word(path, kind),
            "SourceCorruptError",
            "3,000 values take up to 4",
        )
        for kind in ("plain", "list", "struct", "other codec")
    },
    "shared beginnings": (shared_beginnings, "SourceCorruptError", "bytes once decoded"),
    "page of a struct, streaming": (
        lambda path: long_pages(path, "struct", 450),
        "SourceCorruptError",
        "column s.s: a page of",
    ),
    "shared beginnings of structs, streaming": (
        shared_beginnings_of_structs,
        "SourceCorruptError",
        "6,000 values take up to",
    ),
    "footer": (long_footer, "SourceError", "a footer of"),
}


def test_small_files_that_become_much_are_refused_before_they_do(tmp_path):
    tasks = []
    for number, (kind, (write, _, _)) in enumerate(FILES.items()):
        write(tmp_path / f"{number}.parquet")
        tasks.append((str(tmp_path / f"{number}.parquet"), "elsewhere" if "streaming" in kind else "here"))
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(NUM_THREADS)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        input=json.dumps(tasks),
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (kind, (_, error, said)), (path, _), found in zip(FILES.items(), tasks, answers, strict=True):
        assert found["error"] is not None, kind
        assert found["error"][0] == error, kind
        assert said in found["error"][1], kind
        assert path in found["error"][1], kind
        assert found["peak_bytes"] < BOUND_BYTES, kind


def test_strings_in_lists_and_structs_that_may_be_large_and_are_not_come_as_they_are(tmp_path):
    """One long word, which stands for one value: nothing is refused, whatever it could stand for."""
    path = tmp_path / "large.parquet"
    words = ["x" * 400_000, *(f"w{i % 100}" for i in range(2999))]
    table = pa.table({"l": [words[i : i + 10] for i in range(0, 3000, 10)], "s": [{"a": w} for w in words[::10]]})
    pq.write_table(table, path, compression="gzip")
    import stoker

    with stoker.Loader(stoker.Dataset(path), batch_size=100, shuffle=False) as loader:
        batches = list(loader)
    found = [[bytes(word).decode() for word in row] for batch in batches for row in batch["l"]]
    assert found == table["l"].to_pylist()
    assert [bytes(word).decode() for batch in batches for word in batch["s.a"]] == words[::10]


def test_what_is_large_in_the_file_may_be_large_in_memory(tmp_path):
    """Pages of images do not compress: nothing of them is refused."""
    path = tmp_path / "large.parquet"
    image = np.random.default_rng(0).bytes(1 << 20)
    pq.write_table(pa.table({"image": [image] * 80}), path, compression="zstd", use_dictionary=False)
    import stoker

    with stoker.Loader(stoker.Dataset(path), batch_size=16) as loader:
        assert sum(len(batch["image"]) for batch in loader) == 80


def test_a_pipe_that_takes_the_place_of_a_file_is_an_error_and_is_not_waited_for(tmp_path):
    import stoker

    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet", row_group_size=20)
    with stoker.Loader(stoker.Dataset(tmp_path, chunk_size=100), batch_size=10) as loader:
        (tmp_path / "a.parquet").unlink()
        os.mkfifo(tmp_path / "a.parquet")
        with pytest.raises(stoker.SourceError, match=r"a\.parquet is no regular file"):
            list(loader)
