"""`stoker warm` and `stoker explain` where the order counts something else than rows."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """Every command runs in a folder with data."""
    monkeypatch.chdir(tmp_path)
    ids = np.arange(200)
    tokens = [[int(i)] * (i % 9) for i in ids]
    pq.write_table(pa.table({"id": ids, "q": ids // 6, "w": ids % 4, "tokens": tokens}), "a.parquet", row_group_size=40)
    (tmp_path / "shapes.py").write_text(
        "import stoker\npack = stoker.Pack('tokens', length=16)\nother = 3\n"
        "fitted = stoker.Pack('tokens', length=5, split=False)\nngram = stoker.NGram(length=3, keys='q')\n"
    )


def test_warm_counts_and_fills_the_chunks_that_such_a_loader_uses(run):
    code, out, _ = run("warm", "a.parquet", "--cache", "cache", "--chunk-size", "1kB", "--group-by", "q")
    assert code == 0
    assert "groups of q, made of 200 rows" in out
    dataset = stoker.Dataset("a.parquet", chunk_size="1kB")
    with stoker.Loader(dataset, batch_size=4, group_by="q", cache="cache") as loader:
        list(loader)
        assert loader.stats().num_built == 0
    code, out, _ = run("warm", "a.parquet", "--cache", "cache", "--sequence", "shapes.py:pack", "--json")
    told = json.loads(out)["units"]
    assert told["told"] == "rows of 16 tokens, cut"
    assert told["num_units"] == -(-sum(i % 9 for i in range(200)) // 16)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"group_by": "q"}, ["--group-by", "q"]),
        ({"weights": "w"}, ["--weights", "w"]),
        ({"sequence": stoker.Pack("tokens", length=16)}, ["--sequence", "shapes.py:pack"]),
    ],
    ids=["groups", "weights", "packed"],
)
def test_explain_names_the_rows_that_such_a_loader_uses(run, options, arguments):
    with stoker.Loader(stoker.Dataset("a.parquet"), batch_size=4, shuffle=True, seed=3, **options) as loader:
        told = loader.explain(2, epoch=1)
    code, out, _ = run(
        "explain", "a.parquet", "--step", 2, "--epoch", 1, "--batch-size", 4, "--shuffle", "--seed", 3, "--json",
        *arguments,
    )  # fmt: skip
    assert code == 0
    samples = json.loads(out)["samples"]
    assert [(one["unit"], one["row_group"], one["row"]) for one in samples] == [
        (unit, row.row_group, row.row) for unit, row in zip(told.unit.tolist(), told, strict=True)
    ]


def test_a_row_is_found_by_its_group(run):
    with stoker.Loader(stoker.Dataset("a.parquet"), batch_size=4, shuffle=True, group_by="q") as loader:
        use = loader.find("a.parquet", 2, 7)
    code, out, _ = run(
        "explain",
        "a.parquet",
        "--find",
        "a.parquet",
        2,
        7,
        "--batch-size",
        4,
        "--shuffle",
        "--group-by",
        "q",
        "--json",
    )
    assert code == 0
    assert json.loads(out)["step"] == use.step


@pytest.mark.parametrize(
    ("options", "arguments", "lanes"),
    [
        ({"weights": "w"}, ["--weights", "w"], 1),
        ({"sequence": stoker.NGram(length=3, keys="q")}, ["--sequence", "shapes.py:ngram"], 2),
        ({"sequence": stoker.Pack("tokens", length=16)}, ["--sequence", "shapes.py:pack"], 1),
        ({"sequence": stoker.Pack("tokens", length=5, split=False)}, ["--sequence", "shapes.py:fitted"], 2),
    ],
    ids=["weights", "windows", "packed", "fitted"],
)
def test_every_step_of_a_row_is_found(run, options, arguments, lanes):
    rows, at = [(0, 0), (1, 17), (4, 39), (2, 7)], {"global_batch_size": 4, "rank": 0, "world_size": 2}
    with stoker.Loader(stoker.Dataset("a.parquet"), shuffle=True, lanes=lanes, **at, **options) as loader:
        expected = [
            [(use.step, use.rank) for use in loader.find_all("a.parquet", *row, epoch=1) if use.step is not None]
            for row in rows
        ]
    assert sum(map(len, expected)) > 2
    for row, steps in zip(rows, expected, strict=True):
        given = ["explain", "a.parquet", "--find", "a.parquet", *row, "--batch-size", 2, "--world-size", 2, "--shuffle"]
        given += ["--epoch", 1, "--lanes", lanes, *arguments]
        code, out, _ = run(*given, "--json")
        assert code == 0
        assert [(use["step"], use["rank"]) for use in json.loads(out)["uses"]] == steps
        code, out, _ = run(*given)
        assert code == 0
        assert out.count("on rank") == len(steps)
        assert ("is not used in epoch 1: it is in none of the" in out) == (not steps)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", 0, "--weights", "w", "--group-by", "q"], "group_by and weights each say"),
        (["--step", 0, "--sequence", "shapes.py:other"], "sequence must be a stoker.NGram or a stoker.Pack, not 3"),
        (["--step", 0, "--sequence", "shapes.py:none"], "has nothing with the name 'none'"),
        (["--step", 0, "--group-by", "none"], "no file has the column 'none'"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(run, arguments, message):
    code, _, errors = run("explain", "a.parquet", "--batch-size", 4, *arguments)
    assert code != 0
    assert message in " ".join(errors.split())


def test_tokens_of_a_transform_need_a_cache_that_knows_them(run, tmp_path):
    (tmp_path / "made.py").write_text(
        "import numpy as np, stoker\n"
        "def twice(rows):\n"
        "    ids = np.asarray(rows['id'])\n"
        "    return {'id': ids, 'tokens': stoker.Ragged(np.repeat(ids, 2), np.arange(len(ids) + 1) * 2)}\n"
        "dataset = stoker.Dataset('a.parquet', transform=twice, transform_version='1')\n"
        "pack = stoker.Pack('tokens', length=16)\n"
    )
    arguments = ["explain", "made.py:dataset", "--step", 0, "--batch-size", 2, "--sequence", "made.py:pack"]
    code, _, errors = run(*arguments, "--cache", "cache")
    assert code != 0
    assert "name the cache of a loader that has run" in " ".join(errors.split())
    assert run("warm", "made.py:dataset", "--sequence", "made.py:pack", "--cache", "cache")[0] == 0
    code, out, _ = run(*arguments, "--cache", "cache", "--json")
    assert code == 0
    assert [one["row"] for one in json.loads(out)["samples"]] == list(range(16))


@pytest.mark.parametrize(
    ("arguments", "told", "num_units"),
    [
        (["--group-by", "q"], "groups of q", 34),
        (["--weights", "w"], "draws by w", 200),
        (["--sequence", "shapes.py:pack"], "rows of 16 tokens, cut", -(-sum(i % 9 for i in range(200)) // 16)),
    ],
    ids=["groups", "weights", "packed"],
)
def test_inspect_counts_what_such_a_loader_counts(run, arguments, told, num_units):
    code, out, _ = run("inspect", "a.parquet", *arguments)
    assert code == 0
    assert f"{num_units:,} {told}" in " ".join(out.split())
    code, out, _ = run("inspect", "a.parquet", "--json", *arguments)
    units = json.loads(out)["units"]
    assert (units["told"], units["num_units"], units["num_rows"]) == (told, num_units, 200)
    assert json.loads(run("inspect", "a.parquet", "--json")[1])["units"] is None


def quality_of(run, *arguments):
    code, out, _ = run("order", "quality", "b.parquet", "--batch-size", 50, "--chunk-size", "4kB", "--json", *arguments)
    assert code == 0
    return json.loads(out)


@pytest.mark.parametrize("how", ["groups", "windows", "packed", "weights"])
def test_order_quality_measures_the_order_of_units(run, tmp_path, how):
    ids = np.arange(20_000)
    tokens = [[1] * 16] * len(ids)
    table = pa.table({"day": ids // 500, "q": ids // 4, "w": ids % 2, "tokens": tokens})
    pq.write_table(table, "b.parquet", row_group_size=500)
    (tmp_path / "shapes2.py").write_text(
        "import stoker\npack = stoker.Pack('tokens', length=16)\nngram = stoker.NGram(length=2, keys='q')\n"
    )
    arguments, told, num_units = {
        "groups": (["--group-by", "q"], "groups of q", 5000),
        "windows": (["--sequence", "shapes2.py:ngram"], "windows of 2 rows of q", 15_000),
        "packed": (["--sequence", "shapes2.py:pack"], "rows of 16 tokens, cut", 20_000),
        "weights": (["--weights", "w"], "draws by w", 20_000),
    }[how]
    found = quality_of(run, "--column", "day", "--window", "all", *arguments)
    assert found["units"] == told
    assert found["num_samples"] == num_units
    assert found["chi_square"] == pytest.approx(1, abs=0.2)
    assert found["sentence"].startswith(("Well mixed", "Nearly well mixed"))
    badly = quality_of(run, "--column", "day", "--window", "2", *arguments)
    assert badly["chi_square"] > 3
    _, out, _ = run("order", "quality", "b.parquet", "--batch-size", 50, "--column", "day", *arguments)
    assert f"{told}, each by its first row" in " ".join(out.split()) or how == "weights"


def test_weights_change_the_share_that_a_label_should_have(run):
    # Half of the rows weigh ten times as much: a label that says which is met in ten of eleven draws.
    ids = np.arange(8_000)
    pq.write_table(pa.table({"y": ids % 2, "w": 1 + 9 * (ids % 2)}), "b.parquet", row_group_size=500)
    found = quality_of(run, "--column", "y", "--window", "all", "--weights", "w")
    assert found["chi_square"] == pytest.approx(1, abs=0.3)
