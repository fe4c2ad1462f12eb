"""The commands on a mixture: what they say is what a loader of it does."""

from __future__ import annotations

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker

SIZES = {"web": (900, 900), "code": (600,), "books": (200,)}
CODE = """
import stoker
sets = {name: stoker.Dataset(name, chunk_size="1kB") for name in ("web", "code", "books")}
mixed = stoker.Mixture(sets, weights={"web": 6, "code": 3, "books": 1})
last = stoker.Mixture(sets, weights={"web": 1, "code": 1, "books": 1}, until="last")
every = stoker.Mixture(sets)
unlike = stoker.Mixture({"web": sets["web"], "few": stoker.Dataset("code", columns=["id"])})
some = stoker.Mixture({"a": stoker.Dataset("web", filters=[("day", ">", 5)]), "b": sets["code"]})
pack = stoker.Pack("tokens", length=16)
"""


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """Every command runs in a folder with data sets and a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # which is taken back, with what commands add
    first = 0
    for name, sizes in SIZES.items():
        (tmp_path / name).mkdir()
        for i, size in enumerate(sizes):
            ids = np.arange(first, first + size)
            first += size
            table = pa.table(
                {
                    "id": ids,
                    "day": ids // 50,
                    "word": [f"{name} {i // 100}" for i in ids],
                    "q": ids // 7,
                    "w": ids % 4,
                    "tokens": [[int(i)] * (i % 5) for i in ids],
                }
            )
            pq.write_table(table, tmp_path / name / f"part-{i}.parquet", row_group_size=90)
    (tmp_path / "mixing.py").write_text(CODE)
    yield
    sys.modules.pop("mixing", None)


def datasets():
    return {name: stoker.Dataset(name, chunk_size="1kB") for name in SIZES}


ORDER = ["--batch-size", 8, "--world-size", 3, "--seed", 5, "--shuffle", "--window", 3]
OPTIONS = {"batch_size": 8, "world_size": 3, "seed": 5, "shuffle": True, "window": 3}
UNITS = [
    ({}, [], 1),
    ({"group_by": "q"}, ["--group-by", "q"], 2),
    ({"weights": "w"}, ["--weights", "w"], 1),
    ({"sequence": stoker.Pack("tokens", length=16)}, ["--sequence", "mixing.py:pack"], 2),
]


@pytest.mark.parametrize(("options", "arguments", "lanes"), UNITS, ids=["rows", "groups", "draws", "packed"])
def test_explain_names_data_set_file_and_row_of_every_sample(run, options, arguments, lanes):
    mixture = stoker.Mixture(datasets(), weights={"web": 6, "code": 3, "books": 1})
    with stoker.Loader(mixture, rank=1, lanes=lanes, **OPTIONS, **options) as loader:
        told = loader.explain(3, epoch=2)
        state = loader.state_dict()
    given = ["explain", "mixing.py:mixed", "--epoch", 2, "--lanes", lanes, *ORDER, *arguments]
    code, out, _ = run(*given, "--step", 3, "--rank", 1, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["fingerprint"] == state["fingerprint"]
    assert [(s["unit"], s["dataset"], s["file"], s["row_group"], s["row"]) for s in found["samples"]] == [
        (unit, row.dataset, row.url, row.row_group, row.row) for unit, row in zip(told.unit.tolist(), told, strict=True)
    ]
    sample = found["samples"][0]
    code, out, _ = run(*given, "--find", sample["file"], sample["row_group"], sample["row"], "--json")
    assert code == 0
    assert (3, 1, sample["dataset"]) in [(u["step"], u["rank"], u["dataset"]) for u in json.loads(out)["uses"]]


def test_explain_in_a_pipe_has_a_column_for_the_data_set(run):
    code, out, _ = run("explain", "mixing.py:last", "--step", 0, *ORDER)
    assert code == 0
    head, *lines = out.splitlines()
    assert head.split("\t") == ["sample", "data set", "file", "row_group", "row"]
    assert all(line.split("\t")[1] in line.split("\t")[2] for line in lines)


def test_a_row_that_an_epoch_leaves_to_another_one_is_said_so(run):
    outs = [run("explain", "mixing.py:mixed", "--find", "web/part-0.parquet", i, 5, *ORDER)[1] for i in range(10)]
    assert {"(of web) is used in epoch 0, step" in out for out in outs} == {True, False}
    assert all(("is not used in epoch 0" in out) == ("another one has it" in out) for out in outs)
    assert all(("is not used in epoch 0" in out) != ("is used in epoch 0" in out) for out in outs)
    code, out, _ = run("explain", "mixing.py:last", "--find", "books/part-0.parquet", 0, 7, *ORDER)
    assert code == 0
    assert "is used 9 times in epoch 0, step" in out


def test_a_filtered_sample_is_named_by_its_place_among_those_that_pass(run):
    code, out, _ = run("explain", "mixing.py:some", "--step", 0, *ORDER)
    assert code == 0
    assert "passing row" in out


@pytest.mark.parametrize("window", [1, "all"])
def test_order_quality_tells_whether_the_mixture_is_mixed_and_the_shares_of_a_batch(run, window):
    arguments = ["--column", "day", "--batch-size", 64, "--window", window]
    code, out, _ = run("order", "quality", "mixing.py:last", *arguments)
    assert code == 0
    assert out.startswith("Badly mixed" if window == 1 else "Well mixed")
    assert "where the mixture has 33.3%; no data set is farther from its share." in out
    code, out, _ = run("order", "quality", "mixing.py:last", *arguments, "--json")
    found = json.loads(out)
    assert (found["chi_square"] > 3) == (window == 1)
    assert found["num_classes"] == 52
    assert [share["name"] for share in found["shares"]] == list(SIZES)
    for share in found["shares"]:
        assert share["expected"] == pytest.approx(1 / 3)
        assert share["lowest"] < share["mean"] < share["highest"]
        assert share["mean"] == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize(("options", "arguments", "_"), UNITS[1:], ids=["groups", "draws", "packed"])
def test_order_quality_measures_mixed_units(run, options, arguments, _):
    code, out, _ = run(
        "order", "quality", "mixing.py:every", "--column", "word", "--batch-size", 16, "--seed", 2, *arguments
    )
    assert code == 0
    assert "Well mixed" in out
    mixture = stoker.Mixture(datasets())
    with stoker.Loader(mixture, batch_size=16, **options) as loader:
        assert f"order of {loader.units.num_units:,} {loader.units.told}" in " ".join(out.split())


def test_order_quality_refuses_a_column_that_is_of_numbers_here_and_of_words_there(run, tmp_path):
    pq.write_table(pa.table({"day": ["x"] * 50}), tmp_path / "odd.parquet")
    (tmp_path / "mixing.py").write_text(
        "import stoker\nodd = stoker.Mixture({'web': stoker.Dataset('web', columns=['id']), "
        "'odd': stoker.Dataset('odd.parquet', fields={'id': stoker.Field('int64', columns='day', hash_buckets=9)})})\n"
    )
    code, _, errors = run("order", "quality", "mixing.py:odd", "--column", "day", "--batch-size", 4, "--window", 1)
    assert code == 1
    assert "column 'day' is int64 in 'web', string in 'odd': values that cannot be compared" in errors


def test_warm_fills_the_chunks_of_all_data_sets(run):
    code, out, _ = run("warm", "mixing.py:mixed", "--cache", "cache", "--group-by", "q")
    assert code == 0
    assert out.count("cache is warm") == 3
    assert out.count("groups of q, made of") == 3
    with stoker.Loader(stoker.Mixture(datasets()), batch_size=9, group_by="q", cache="cache") as loader:
        list(loader)
        assert loader.stats().num_built == 0
    code, out, _ = run("warm", "mixing.py:mixed", "--cache", "cache", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["is_complete"]
    assert list(found["datasets"]) == list(SIZES)
    assert found["num_samples"] == sum(sum(sizes) for sizes in SIZES.values())
    assert found["num_chunks"] == sum(part["num_chunks"] for part in found["datasets"].values())


def test_inspect_says_what_an_epoch_has_of_each_data_set(run):
    code, out, _ = run("inspect", "mixing.py:mixed", "--json")
    found = json.loads(out)
    assert code == 0
    mixture = stoker.Mixture(datasets(), weights={"web": 6, "code": 3, "books": 1})
    with stoker.Loader(mixture, batch_size=9, shuffle=True) as loader:
        counts = [0, 0, 0]
        for step in range(len(loader)):
            for row in loader.explain(step):
                counts[list(SIZES).index(row.dataset)] += 1
        assert found["fingerprint"] == loader.state_dict()["fingerprint"]
        assert found["default_window"] == loader.state_dict()["window"]
    assert found["counts"] == dict(zip(SIZES, counts, strict=True))
    assert {name: part["num_samples"] for name, part in found["datasets"].items()} == {
        name: sum(sizes) for name, sizes in SIZES.items()
    }
    code, out, _ = run("inspect", "mixing.py:last")
    assert code == 0
    assert "an epoch        5,400 samples, until the last data set is used up" in out
    assert "9.00 times" in out


@pytest.mark.parametrize(
    "command",
    [
        ["inspect"],
        ["warm", "--cache", "cache"],
        ["explain", "--step", 0, "--batch-size", 4],
        ["order", "quality", "--column", "id", "--batch-size", 4],
    ],
    ids=["inspect", "warm", "explain", "order"],
)
def test_data_sets_that_no_loader_would_mix_are_refused(run, command):
    code, out, errors = run(*command, "mixing.py:unlike")
    assert code == 1
    assert "few: has no field day: int64" in out + errors
    assert "Name the fields the same in each Dataset(fields=...)" in out + errors


def test_a_command_that_takes_one_data_set_says_how_to_name_it(run):
    for arguments in (["doctor", "mixing.py:mixed"], ["inspect", "mixing.py:mixed", "--deduplicate"]):
        code, _, errors = run(*arguments)
        assert code == 2
        assert "one data set" in errors
    code, _, errors = run("inspect", "mixing.py:gone")
    assert code == 2
    assert "has nothing with the name 'gone' that is a Dataset or a Mixture; it has every, last, mixed, some" in errors
