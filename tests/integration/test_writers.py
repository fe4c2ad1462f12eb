"""Files of every writer that users have, against pyarrow's own reading of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, Loader


def test_fields_of_a_footer_that_nobody_knows_yet_are_passed_over(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(10)}), path)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length : -8]
    assert footer[-1] == 0
    unknown = {
        "empty list of no kind, as fastparquet writes": b"\x09\x00",
        "empty list": b"\x09\x08",
        "list of bools": b"\x09\x21\x01\x02",
        "set": b"\x0a\x25\x02\x04",
        "empty map": b"\x0b\x00",
        "map of i32 to binary": b"\x0b\x02\x58\x02\x02ab\x04\x01x",
        "uuid": b"\x0d" + bytes(range(16)),
        "struct": b"\x0c\x15\x02\x11\x00",
        "double": b"\x07" + bytes(8),
        "byte": b"\x03\x07",
    }
    for name, field in unknown.items():
        # A field in the long form: its kind, then its number, 100.
        more = footer[:-1] + field[:1] + b"\xc8\x01" + field[1:] + b"\x00"
        path.write_bytes(content[: -8 - length] + more + len(more).to_bytes(4, "little") + b"PAR1")
        with Loader(Dataset(path), batch_size=10, shuffle=False) as loader:
            (batch,) = loader
        assert batch["a"].tolist() == list(range(10)), name


def test_fastparquet_writes_files_that_are_read(tmp_path):
    fastparquet = pytest.importorskip("fastparquet")
    pandas = pytest.importorskip("pandas")
    fastparquet.write(str(tmp_path / "a.parquet"), pandas.DataFrame({"a": np.arange(100)}), row_group_offsets=[0, 50])
    with Loader(Dataset(tmp_path), batch_size=100, shuffle=False) as loader:
        (batch,) = loader
    assert batch["a"].tolist() == list(range(100))
