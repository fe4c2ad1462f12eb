"""In which narrower forms fields could be kept, found by a look at some rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.cli import main

NUM_ROWS = 2_000


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 5, NUM_ROWS)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    columns = {
        "small": rng.integers(0, 100, NUM_ROWS),
        "signed": rng.integers(-1000, 1000, NUM_ROWS),
        "wide": rng.integers(0, 1 << 62, NUM_ROWS),
        "near_the_end": rng.integers(0, 200, NUM_ROWS),
        "halves": rng.integers(0, 50, NUM_ROWS).astype(np.float32) / 2,
        "normal": rng.standard_normal(NUM_ROWS, dtype=np.float32),
        "huge": rng.standard_normal(NUM_ROWS) * 1e30,
        "at": pa.array(np.arange(NUM_ROWS), pa.timestamp("us")),
        **{f"flag_{k}": rng.random(NUM_ROWS) < 0.5 for k in range(16)},
        "tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 30_000, int(offsets[-1])))),
    }
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "data" / "0.parquet", row_group_size=500)
    return tmp_path / "data"


FIELDS = {"flags": stoker.Field(columns="flag_*")}


def test_the_narrowest_form_that_holds_what_was_seen_is_proposed(folder, told):
    found = told(stoker.Dataset(folder, fields=FIELDS), "inspect", "--compact")["narrowing"]
    forms = {one["field"]: one["storage_dtype"] for one in found["fields"]}
    assert forms == {
        "small": "uint8",
        "signed": "int16",
        "near_the_end": "uint16",  # twice as much would not fit a byte
        "halves": "float16",
        "normal": "float16",
        "huge": "bfloat16",
        "flags": "bits",
        "tokens": "uint16",
    }
    errors = {one["field"]: one["error"] for one in found["fields"]}
    assert {name for name, error in errors.items() if not error} == forms.keys() - {"normal", "huge"}
    assert 0 < errors["normal"] < 1e-2
    assert 1e-4 < errors["huge"] <= 1 / 256
    assert found["rounded_bytes"] < found["kept_bytes"] < found["row_bytes"]
    assert all(one["kept_bytes"] < one["row_bytes"] for one in found["fields"])


def test_what_is_proposed_can_be_asked_for_and_nothing_more_is_found_then(folder, told):
    found = told(stoker.Dataset(folder, fields=FIELDS), "inspect", "--compact")["narrowing"]
    columns = {"flags": "flag_*"}
    fields = {
        one["field"]: stoker.Field(columns=columns.get(one["field"]), storage_dtype=one["storage_dtype"])
        for one in found["fields"]
    }
    narrow = stoker.Dataset(folder, fields=fields)
    assert told(narrow, "inspect", "--compact")["narrowing"]["fields"] == []
    with stoker.Loader(narrow, batch_size=100) as loader:
        assert sum(len(batch["wide"]) for batch in loader) == NUM_ROWS


def test_inspect_prints_it(folder, capsys):
    assert main(["inspect", str(folder), "--compact"]) == 0
    text = capsys.readouterr().out
    assert '"uint8"' in text
    assert "within 0.0" in text
    assert "storage_dtype=" in text
    assert main(["inspect", str(folder), "--compact", "--columns", "wide"]) == 0
    assert "No field could be kept much narrower" in capsys.readouterr().out
