"""What sharing would save, found by a look at some rows."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.cli import main
from stoker.demo.data import make_data
from stoker.plan.savings import find_sharing


def data_in(folder, *, run=10, num_rows=4000):
    rng = np.random.default_rng(0)
    query = np.arange(num_rows) // run
    table = pa.table(
        {
            "label": rng.integers(0, 2, num_rows).astype(np.int8),
            "q_weight": query / 3,
            "session_id": query * 7,
            "user": query // 4 * 3,
            "q_list": pa.array([[q] * (q % 5) for q in query.tolist()], pa.list_(pa.int64())),
            "context_0": query.astype(np.float32),
            "context_1": -query.astype(np.float32),
            "context_2": rng.random(num_rows).astype(np.float32),
            "part": np.zeros(num_rows, np.int16),
        }
    )
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "a.parquet", row_group_size=1000)
    return stoker.Dataset(folder, chunk_size=20_000)


def test_the_key_and_what_hangs_on_it_are_found(tmp_path):
    found = find_sharing(data_in(tmp_path / "data").open())
    (key,) = found.keys
    assert key.key == "session_id"
    assert key.fields == ("q_weight", "user", "q_list", "context_0", "context_1", "part")
    # "context_*" would name one more.
    assert "context_*" not in key.patterns
    assert {"context_0", "context_1"} < set(key.patterns)
    assert key.run_rows == 10
    assert found.row_bytes == 1 + 8 + 8 + 8 + (8 + 2 * 8) + 4 + 4 + 4 + 2


def test_what_is_found_is_what_sharing_saves(tmp_path):
    make_data(tmp_path / "data", num_rows=24_000)
    paths = str(tmp_path / "data")
    found = find_sharing(stoker.Dataset(paths).open())
    share = {key.key: key.patterns for key in found.keys}
    sizes = []
    for name, dataset in (("a", stoker.Dataset(paths)), ("b", stoker.Dataset(paths, deduplicate=share))):
        with stoker.Loader(dataset, batch_size=4096, cache=tmp_path / name) as loader:
            assert sum(len(batch["label"]) for batch in loader) == 24_000
        sizes.append(sum(path.stat().st_size for path in (tmp_path / name).glob("chunks/*")))
    assert sizes[0] / sizes[1] == pytest.approx(found.row_bytes / found.kept_bytes, rel=0.1)


@pytest.mark.parametrize("columns", [["label"], ["context_2", "label"]])
def test_sharing_is_off_where_it_does_not_pay(tmp_path, columns):
    data_in(tmp_path / "data")
    assert find_sharing(stoker.Dataset(tmp_path / "data", columns=columns).open()).keys == ()


def test_runs_of_one_row_share_nothing(tmp_path):
    assert [key.key for key in find_sharing(data_in(tmp_path / "data", run=1).open()).keys] != ["session_id"]


def test_few_rows_of_a_run_meet_in_a_shuffled_batch_of_a_large_window(tmp_path):
    found = find_sharing(data_in(tmp_path / "data", num_rows=4000).open())
    assert found.window_rows == 4000
    assert found.kept_bytes <= found.shuffled_bytes < 0.6 * found.row_bytes
    large = replace(found, window_rows=2_000_000)
    assert large.kept_bytes == found.kept_bytes
    assert large.shuffled_bytes > 0.98 * found.row_bytes


def test_a_transforms_result_is_looked_at(tmp_path):
    data_in(tmp_path / "data")
    dataset = stoker.Dataset(tmp_path / "data", transform=doubled, transform_version="1")
    (key,) = find_sharing(dataset.open()).keys
    assert (key.key, key.fields) == ("double", ("vector",))


def doubled(table):
    query = table["session_id"].to_numpy()
    return {"vector": np.repeat(query, 8).reshape(-1, 8), "double": query * 2, "x": table["context_2"]}


def test_an_empty_data_set_has_nothing_to_share(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    assert find_sharing(stoker.Dataset(tmp_path).open()).keys == ()


def test_inspect_says_what_to_write(tmp_path, capsys):
    data_in(tmp_path / "data")
    assert main(["inspect", str(tmp_path / "data"), "--deduplicate"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert 'deduplicate={"session_id": [' in out
    assert "group_by='session_id'" in out
    assert main(["inspect", str(tmp_path / "data"), "--deduplicate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["sharing"]
    with stoker.Loader(stoker.Dataset(tmp_path / "data", deduplicate=found["deduplicate"]), batch_size=9) as loader:
        assert loader.spec["q_list"].deduplicated_by == "session_id"
    assert main(["inspect", str(tmp_path / "data"), "--deduplicate", "--columns", "label"]) == 0
    assert "would not pay" in capsys.readouterr().out
