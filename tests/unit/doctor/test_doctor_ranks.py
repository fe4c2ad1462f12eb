"""One slow rank among several is named, with the stage in which it lags."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.typed import answer_of, typed


def result(rate_s, limit, **slow):
    """What `--json` has of a rank, as far as ranks are compared by it: stages that give twice the demand, or less."""
    stages = [{"key": key, "supply_s": slow.get(key, 2e6)} for key in ("fetch", "decode", "transform", "publish")]
    return {"today": "source", "paths": [{"key": "source", "rate_s": rate_s, "limit": limit}], "stages": stages}


def files_of(folder, *ranks):
    """Write what ranks say to a file each."""
    paths = [folder / f"rank{i}.json" for i in range(len(ranks))]
    for path, rank in zip(paths, ranks, strict=True):
        path.write_text(json.dumps(rank))
    return paths


@given(
    stage=st.sampled_from(["fetch", "decode", "transform"]),
    world_size=st.integers(2, 9),
    rank=st.integers(0, 8),
    speeds=st.lists(st.floats(0.97, 1.03), min_size=9, max_size=9),
)
def test_the_slow_rank_and_its_stage_are_named(tmp_path_factory, stage, world_size, rank, speeds):
    rank %= world_size
    ranks = [result(1e6 * speed, "step") for speed in speeds[:world_size]]
    ranks[rank] = result(2e5, stage, **{stage: 2.1e5})
    found = answer_of("doctor", "--ranks", *files_of(tmp_path_factory.mktemp("ranks"), *ranks))
    assert (found["rank"], found["stage"]) == (rank, stage)
    assert found["lost_share"] == pytest.approx(1 - found["rates"][rank] / 1_000_000, abs=0.03)


def test_ranks_that_differ_by_chance_are_not_accused(tmp_path):
    files = files_of(tmp_path, result(1e6, "step"), result(0.97e6, "step"), result(1e6, "step"))
    found = answer_of("doctor", "--ranks", *files)
    assert found["rank"] is None
    assert "No rank" in found["sentence"]


def test_the_slow_rank_is_said_in_a_sentence(tmp_path):
    quick, slow = result(1e6, "step"), result(2e5, "fetch", fetch=2e5)
    code, out, _ = typed("doctor", "--ranks", *files_of(tmp_path, quick, slow, quick))
    assert code == 0
    assert "Rank 1 holds the others up" in out
    assert "fetch" in out


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([result(1e6, "step")], "two results"),
        ([{}, result(1e6, "step")], "not a result of `stoker doctor --json`"),
        ([result(1e6, "step"), "no object"], "not a result of `stoker doctor --json`"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, ranks, words):
    code, out, err = typed("doctor", "--ranks", *files_of(tmp_path, *ranks))
    assert (code, out) == (2, "")
    assert words in err
