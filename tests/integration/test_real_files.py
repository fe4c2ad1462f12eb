"""Files of others, damaged files, and files with a bit of everything: right, or refused by name."""

from __future__ import annotations

import base64
import datetime as dt
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.real_files.answers import Source, check_values, explore
from tests.integration.real_files.child import run_tasks
from tests.integration.real_files.damage import probes
from tests.integration.real_files.page import (
    PAGE,
    TABLES,
    answers_now,
    answers_written,
    version_now,
    version_written,
    with_answers,
)

import stoker
from stoker import Field

# A sound file that crashed another reader; docs/reference/real-files.md says what it is.
SOUND = "ARROW-GH-43605.parquet"
# Maps beside the broken column would be refused before anything is read in parts.
COLUMNS = {"ARROW-GH-41317.parquet": ["boolean", "timestamp_us_no_tz"], "ARROW-GH-41321.parquet": ["int64"]}

# Small files by many writers, with every encoding and kind of nesting.
DAMAGED = [
    "alltypes_plain",
    "alltypes_dictionary",
    "binary_truncated_min_max",
    "byte_stream_split_extended.gzip",
    "datapage_v2.snappy",
    "delta_binary_packed",
    "delta_byte_array",
    "fixed_length_decimal",
    "list_columns",
    "nested_structs.rust",
    "nullable.impala",
    "repeated_primitive_no_list",
    "rle_boolean_encoding",
    "sort_columns",
]

NUM_ROWS = 60


def everything() -> pa.Table:
    """Columns of every kind, without nulls."""
    i = np.arange(NUM_ROWS)
    floats = np.where(i % 7 == 0, np.nan, np.where(i % 7 == 1, -0.0, i / 3))
    return pa.table(
        {
            "i8": pa.array(i - 30, pa.int8()),
            "u64": pa.array([2**63 + k for k in i.tolist()], pa.uint64()),
            "f16": pa.array(floats.astype(np.float16)),
            "f32": pa.array(floats, pa.float32()),
            "f64": pa.array(floats),
            "flag": pa.array(i % 3 == 0),
            "date": pa.array(i.tolist(), pa.date32()),
            "time": pa.array((i * 1000).tolist(), pa.time64("us")),
            "at": pa.array(
                [dt.datetime(9999, 1, 1) + dt.timedelta(microseconds=int(k)) for k in i], pa.timestamp("us")
            ),
            "at_utc": pa.array(i.tolist(), pa.timestamp("ms", "Europe/Berlin")),
            "price": pa.array([Decimal(int(k)) / 100 for k in i], pa.decimal128(38, 2)),
            "word": pa.array(["", "ä", "long words " * 3] * (NUM_ROWS // 3)),
            "code": pa.array(["DE", "FR", "DE"] * (NUM_ROWS // 3)).dictionary_encode(),
            "raw": pa.array([bytes([k]) * 3 for k in i], pa.binary(3)),
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(NUM_ROWS * 2.0)), 2),
            "list": pa.array([list(range(k % 4)) for k in i], pa.list_(pa.int16())),
            "lists": pa.array([[[k], [], [k, k]][: k % 4] for k in i.tolist()], pa.list_(pa.list_(pa.int64()))),
            "words": pa.array([["a", "", "bc"][: k % 4] for k in i], pa.list_(pa.string())),
            "struct": pa.array([{"x": k, "y": {"z": [k]}} for k in i.tolist()]),
        }
    )


def with_nulls() -> pa.Table:
    """The same with nulls in every column, in lists and around them."""
    table = everything()
    keep = pa.array(np.arange(NUM_ROWS) % 5 != 2)
    rows = [i if i % 5 != 2 else None for i in range(NUM_ROWS)]
    columns = {name: table[name].take(pa.array(rows, pa.int64())) for name in table.column_names if name != "fixed"}
    columns["inner"] = pa.array([[None, i] if i % 3 else None for i in range(NUM_ROWS)], pa.list_(pa.float32()))
    assert columns["i8"].null_count == NUM_ROWS - keep.true_count
    return pa.table(columns)


WRITERS = {
    "plain": {"compression": "none", "use_dictionary": False},
    "pages": {"compression": "zstd", "data_page_version": "2.0", "data_page_size": 64, "write_page_checksum": True},
    "groups": {"compression": "snappy", "row_group_size": 13, "write_page_index": True},
}


@pytest.fixture
def sound_files(tmp_path):
    """A few files of our own, so that all of this runs without the files of others."""
    files = []
    for name, options in WRITERS.items():
        for kind, table in (("everything", everything()), ("nulls", with_nulls())):
            files.append(tmp_path / f"{kind}-{name}.parquet")
            pq.write_table(table, files[-1], **options)
    return files


def test_every_kind_of_column_comes_as_pyarrow_reads_it(sound_files):
    for path in sound_files:
        explored = explore(Source(path=path))
        assert not explored.answer.left_out
        assert explored.answer.num_rows == NUM_ROWS
        check_values(Source(path=path), explored)


def test_the_comparison_notices_a_value_that_differs(tmp_path):
    table = everything()
    pq.write_table(table, tmp_path / "a.parquet")
    explored = explore(Source(path=tmp_path / "a.parquet"))
    other = table["f64"].to_numpy().copy()
    other[1] = 0.0  # was -0.0
    changed = table.set_column(table.schema.get_field_index("f64"), "f64", pa.array(other))

    class Changed(Source):
        def read(self) -> pa.Table:
            return changed

    with pytest.raises(AssertionError, match=r"f64 .*row 1:"):
        check_values(Changed(path=tmp_path / "a.parquet"), explored)


LONGEST = "parquet-testing/data"


@pytest.mark.parametrize(
    "table", [pytest.param(table, marks=pytest.mark.slow) if table == LONGEST else table for table in TABLES]
)
def test_the_page_says_what_becomes_of_every_file(shared_data, table):
    now = answers_now(table)
    died = {name: answer for name, answer in now.items() if answer.startswith("DIED")}
    assert not died
    page = PAGE.read_text()
    if version_written(page) != version_now():
        pytest.skip(f"{PAGE.name} was written with pyarrow {version_written(page)}")
    assert answers_written(page, table) == now, "run python -m tests.integration.real_files"
    assert with_answers(page, {table: now}) == page


def test_every_bad_file_is_a_source_error_however_it_is_read(shared_data):
    folder = shared_data / "parquet-testing" / "bad_data"
    paths = [path for path in sorted(folder.glob("*.parquet")) if path.name != SOUND]
    assert len(paths) >= 7
    tasks = [
        {
            "kind": "probe",
            "path": str(path),
            "columns": COLUMNS.get(path.name),
            "fills": {},
            "chunk_size": chunk_size,
            "filter": None,
        }
        for path in paths
        for chunk_size in ("32MiB", 100, 1)
    ]
    answers = run_tasks(tasks)
    wrong = [
        (task["path"], task["chunk_size"], answer)
        for task, answer in zip(tasks, answers, strict=True)
        if answer["kind"] != "refused" or not answer["text"].startswith(("SourceError", "SourceCorruptError"))
    ]
    if version_written(PAGE.read_text()) == version_now():
        assert not wrong
    else:  # older ones check less, and end no process
        assert all(answer["kind"] in ("refused", "delivered") for _, _, answer in wrong)


@pytest.mark.parametrize("version", ["0.4.0", "0.7.6"])
def test_petastorm_folders_load_as_plain_parquet_without_their_pickled_schema(shared_data, tmp_path, version):
    folder = tmp_path / version
    shutil.copytree(shared_data / "petastorm" / version, folder, copy_function=shutil.copyfile)
    assert b"petastorm" in (folder / "_common_metadata").read_bytes()
    (folder / "_common_metadata").write_bytes(b"nobody may read this")
    fields = {name: Field(mask=True) for name in ("matrix_nullable", "string_array_nullable")}
    fields |= {"integer_nullable": Field(fill=-1)} if version == "0.7.6" else {}
    keys = set()
    with stoker.Loader(stoker.Dataset(folder, fields=fields), batch_size=7) as loader:
        for batch in loader:
            for name, magic in (("image_png", b"\x89PNG\r\n"), ("matrix", b"\x93NUMPY")):
                assert all(row.tobytes().startswith(magic) for row in batch[name])
            assert not batch["matrix_nullable_mask"].any()
            keys |= {row.tobytes() for row in batch["partition_key"]}
    assert keys == {f"p_{i}".encode() for i in range(10)}


@pytest.mark.parametrize("inside", ["itself", "a list", "a struct"])
def test_a_time_zone_that_is_no_text_is_a_source_error(tmp_path, inside):
    times = pa.array([1, 2], pa.timestamp("us", "Zone/Zone"))
    column = {
        "itself": times,
        "a list": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), times),
        "a struct": pa.StructArray.from_arrays([times], names=["x"]),
    }[inside]
    pq.write_table(pa.table({"t": column}), tmp_path / "a.parquet", store_schema=False)
    # What Arrow keeps of its schema beside Parquet's own is base64: written by hand with bytes that are no UTF-8.
    metadata = pa.schema([("t", column.type)]).serialize().to_pybytes().replace(b"Zone/Zone", b"Zone/\xec\xff\xfe\xfd")
    schema = pq.read_schema(tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet").cast(schema)
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"ARROW:schema": base64.b64encode(metadata).decode()})
    with pytest.raises(stoker.SourceError, match=r"the schema of .*a\.parquet") as caught:
        stoker.Loader(stoker.Dataset(tmp_path / "a.parquet"), batch_size=1)
    assert caught.value.url == str(tmp_path / "a.parquet")


def check_damaged(files: list[Path], folder: Path, *, start: int, stop: int) -> Counter[str]:
    """Load variants of each file in processes of their own; return how many were refused and delivered."""
    names, tasks = [], []
    for sound in files:
        more = probes(sound, folder, start=start, stop=stop)
        names += more[0]
        tasks += more[1]
    answers = run_tasks(tasks)
    wrong = [
        f"{name}: {answer['kind']}: {answer['text']}"
        for name, answer in zip(names, answers, strict=True)
        if answer["kind"] not in ("refused", "delivered")
    ]
    assert not wrong, "\n\n".join(wrong[:20])
    return Counter(answer["kind"] for answer in answers)


def files_to_damage(shared_data: Path) -> list[Path]:
    files = [shared_data / "parquet-testing" / "data" / f"{name}.parquet" for name in DAMAGED]
    return [*files, next((shared_data / "petastorm" / "0.7.6").glob("*/*.parquet"))]


def test_damaged_files_of_ours_are_refused_by_name_or_give_every_row(sound_files, tmp_path):
    counts = check_damaged(sound_files, tmp_path, start=0, stop=8)
    assert counts["refused"] > 10
    assert counts["delivered"] > 3


def test_damaged_files_of_others_are_refused_by_name_or_give_every_row(shared_data, tmp_path):
    counts = check_damaged(files_to_damage(shared_data), tmp_path, start=0, stop=5)
    assert counts["refused"] > 18


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_damaged_files_are_refused_by_name_or_give_every_row(shared_data, sound_files, tmp_path):
    check_damaged([*sound_files, *files_to_damage(shared_data)], tmp_path, start=40, stop=440)
