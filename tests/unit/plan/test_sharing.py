"""What sharing would save, found by a look at some rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.cli import main


def data_in(folder, *, run=10, num_rows=4000, **options):
    """Write rows of runs, and return their data set."""
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
    return stoker.Dataset(folder, **{"chunk_size": 20_000} | options)


@pytest.fixture
def sharing(told):
    """Return what `stoker inspect --deduplicate` finds in a data set."""
    return lambda dataset: told(dataset, "inspect", "--deduplicate")["sharing"]


def test_the_key_and_what_hangs_on_it_are_found(tmp_path, sharing):
    found = sharing(data_in(tmp_path / "data"))
    (key,) = found["keys"]
    assert key["key"] == "session_id"
    assert key["fields"] == ["q_weight", "user", "q_list", "context_0", "context_1", "part"]
    # "context_*" would name one more.
    assert "context_*" not in key["patterns"]
    assert {"context_0", "context_1"} < set(key["patterns"])
    assert key["run_rows"] == 10
    assert found["row_bytes"] == 1 + 8 + 8 + 8 + (8 + 2 * 8) + 4 + 4 + 4 + 2


def test_what_is_found_is_what_sharing_saves(tmp_path, sharing):
    options = {"columns": ["q_weight", "session_id", "user", "context_0", "context_2"]}
    found = sharing(data_in(tmp_path / "data", num_rows=50_000, chunk_size="32MiB", **options))
    assert found["deduplicate"] == {"session_id": found["keys"][0]["patterns"]}
    sizes = []
    for name, keys in (("a", None), ("b", found["deduplicate"])):
        dataset = stoker.Dataset(tmp_path / "data", deduplicate=keys, **options)
        with stoker.Loader(dataset, batch_size=4096, cache=tmp_path / name) as loader:
            assert sum(len(batch["user"]) for batch in loader) == 50_000
        sizes.append(sum(path.stat().st_size for path in (tmp_path / name).glob("chunks/*")))
    assert sizes[0] / sizes[1] == pytest.approx(found["row_bytes"] / found["kept_bytes"], rel=0.1)


@pytest.mark.parametrize("columns", [["label"], ["context_2", "label"]])
def test_sharing_is_off_where_it_does_not_pay(tmp_path, sharing, columns):
    assert sharing(data_in(tmp_path / "data", columns=columns))["keys"] == []


def test_runs_of_one_row_share_nothing(tmp_path, sharing):
    assert "session_id" not in [key["key"] for key in sharing(data_in(tmp_path / "data", run=1))["keys"]]


def test_few_rows_of_a_run_meet_in_a_shuffled_batch_of_a_large_window(tmp_path, sharing):
    columns = ["label", "q_weight", "session_id", "user"]
    small = sharing(data_in(tmp_path / "small", columns=columns))
    assert small["window_rows"] == 4000
    assert small["kept_bytes"] <= small["shuffled_bytes"] < 0.6 * small["row_bytes"]
    large = sharing(data_in(tmp_path / "large", columns=columns, num_rows=300_000, chunk_size="1MiB"))
    assert large["window_rows"] == 300_000
    assert large["kept_bytes"] == pytest.approx(small["kept_bytes"], rel=0.01)
    assert large["shuffled_bytes"] > 0.95 * large["row_bytes"]


def test_a_transforms_result_is_looked_at(tmp_path, sharing):
    (key,) = sharing(data_in(tmp_path / "data", transform=doubled, transform_version="1"))["keys"]
    assert (key["key"], key["fields"]) == ("double", ["vector"])


def doubled(table):
    query = table["session_id"].to_numpy()
    return {"vector": np.repeat(query, 8).reshape(-1, 8), "double": query * 2, "x": table["context_2"]}


def test_an_empty_data_set_has_nothing_to_share(tmp_path, sharing):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    assert sharing(stoker.Dataset(tmp_path))["keys"] == []


def test_inspect_says_what_to_write(tmp_path, capsys, sharing):
    dataset = data_in(tmp_path / "data")
    assert main(["inspect", str(tmp_path / "data"), "--deduplicate"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert 'deduplicate={"session_id": [' in out
    assert "group_by='session_id'" in out
    found = stoker.Dataset(tmp_path / "data", deduplicate=sharing(dataset)["deduplicate"])
    with stoker.Loader(found, batch_size=9) as loader:
        assert loader.spec["q_list"].deduplicated_by == "session_id"
    assert main(["inspect", str(tmp_path / "data"), "--deduplicate", "--columns", "label"]) == 0
    assert "would not pay" in capsys.readouterr().out
