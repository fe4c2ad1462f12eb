"""`stoker ready`: what it calls ready runs without the source, and what it calls missing a loader would build."""

from __future__ import annotations

import shutil

import pytest
from tests.integration.test_cli import fields_of
from tests.strategies import write_files

import stoker

SCRIPT = """
import stoker

a = stoker.Dataset("a", chunk_size=4000)
b = stoker.Dataset("b", chunk_size=4000)
both = stoker.Mixture({"a": a, "b": b}, weights={"a": 3, "b": 1})


def transform(table):
    if 7 in table["id"].to_pylist():
        raise ValueError("not wanted")
    return {"id": table["id"].to_numpy()}


bad = stoker.Dataset("a", chunk_size=4000, transform=transform, transform_version="1")
"""
STEPS = 12
CASES = {
    "in order": ("a.py:a", {}, []),
    "shuffled": ("a.py:a", {"shuffle": True, "seed": 3, "window": 2}, []),
    "lanes": ("a.py:a", {"shuffle": True, "window": 2, "lanes": 2}, []),
    "groups": ("a.py:a", {"shuffle": True, "window": 2, "group_by": "half"}, ["--group-by", "half"]),
    "mixture": ("a.py:both", {"shuffle": True, "window": 2}, []),
    "substitutes": ("a.py:bad", {"shuffle": True, "window": 2, "on_error": "substitute"}, ["--on-error", "substitute"]),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_files(tmp_path / "a", [600, 500, 400], row_group_size=50)
    write_files(tmp_path / "b", [300, 300], row_group_size=50)
    (tmp_path / "a.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_what_is_ready_runs_without_the_source_and_needs_all_of_it(place, case, run, run_json):
    named, options, more = CASES[case]
    arguments = ["ready", named, "--cache", "cache", "--steps", STEPS, "--batch-size", 4, "--world-size", 2, *more]
    for name in ("shuffle", "seed", "window", "lanes"):
        if name in options:
            arguments += [f"--{name}"] + [options[name]] * (name != "shuffle")
    code, found = run_json(*arguments)
    assert (code, found["is_ready"], found["num_missing"]) == (1, False, found["num_chunks"])
    assert (found["is_bound"], found["seconds"] >= 0) == (True, True)
    assert set(found) == fields_of("ready") | {"first_step", "num_steps", "world_size"}
    from a import a, bad, both  # the module that the command has loaded

    dataset = {"a": a, "bad": bad, "both": both}[named.partition(":")[2]]
    common = {"cache": "cache", "batch_size": 4, "world_size": 2} | options
    for rank in range(2):
        with stoker.Loader(dataset, rank=rank, **common) as loader:
            reference = [batch["id"].tolist() for _, batch in zip(range(STEPS), loader, strict=False)]
    code, found = run_json(*arguments)
    assert (code, found["is_ready"], found["missing"], found["rate"]) == (0, True, [], None)
    chunks = {path.name: path for path in (place / "cache" / "chunks").iterdir()}
    # Only what it asks for is left: whatever else goes, it stays ready; whatever of this goes, it does not.
    needed = []
    for path in chunks.values():
        path.rename(place / path.name)
        code, _ = run_json(*arguments)
        needed += [path] * (code == 1)
        if code == 1:
            (place / path.name).rename(path)
    assert len(needed) == found["num_chunks"]
    for name in ("a", "b"):
        shutil.rmtree(place / name)
    with stoker.Loader(dataset, rank=1, prefetch=0, **common) as loader:
        assert [batch["id"].tolist() for _, batch in zip(range(STEPS), loader, strict=False)] == reference


def test_what_is_missing_is_named_and_timed_by_what_was_built(place, run, run_json):
    common = ["--batch-size", 10, "--shuffle", "--window", 2, "--cache", "cache"]
    with stoker.Loader(
        stoker.Dataset("a", chunk_size=4000), batch_size=10, shuffle=True, window=2, cache="cache"
    ) as loader:
        for _ in zip(range(60), loader, strict=False):
            pass
    code, found = run_json("ready", "a", "--chunk-size", 4000, "--steps", 500, *common)
    assert code in (0, 1)
    for chunk in sorted((place / "cache" / "chunks").iterdir())[:3]:
        chunk.unlink()
    code, found = run_json("ready", "a", "--chunk-size", 4000, "--steps", 500, *common)
    assert (code, found["num_steps"]) == (1, 150)
    assert found["num_missing"] >= 3
    assert found["missing_bytes"] > 0
    assert not found["is_bound"]
    assert found["missing"][0]["fragment"].startswith(str(place / "a"))
    code, out, _ = run("ready", "a", "--chunk-size", 4000, "--steps", 500, *common)
    assert code == 1
    assert "Not ready" in out
    assert "about" in out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--steps", 0],
        ["--steps", 5, "--ranks", 9],
        ["--steps", 5, "--ranks", "a-b"],
        ["--steps", 5, "--first-step", 10_000],
        ["--steps", 5, "--group-by", "id", "--weights", "half"],
    ],
)
def test_wrong_usage_is_told_from_what_is_missing(place, wrong, run):
    assert run("ready", "a", "--cache", "cache", "--batch-size", 4, *wrong)[0] == 2
    assert not (place / "cache").exists()


def test_what_the_mirror_has_is_told_from_what_is_to_be_built(place, run, run_json):
    common = ["a", "--chunk-size", 4000]
    assert run("warm", *common, "--cache", "other", "--mirror", "mirror")[0] == 0
    arguments = ["ready", *common, "--cache", "cache", "--steps", 9, "--batch-size", 10]
    code, found = run_json(*arguments, "--mirror", "mirror")
    assert (code, found["num_mirrored"], found["missing_bytes"]) == (1, found["num_missing"], 0)
    assert "mirror" in found["rate"]
    code, found = run_json(*arguments)
    assert (code, found["num_mirrored"]) == (1, 0)
    assert found["num_missing"] > 0
