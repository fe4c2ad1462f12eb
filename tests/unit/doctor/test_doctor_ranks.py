"""One slow rank among several is named, with the stage in which it lags."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli import main
from stoker.doctor.verdict import compare_ranks


def result(rate_s, limit, **slow):
    """What `--json` has of a rank, as far as ranks are compared by it: stages that give twice the demand, or less."""
    stages = [{"key": key, "supply_s": slow.get(key, 2e6)} for key in ("fetch", "decode", "transform", "publish")]
    return {"today": "source", "paths": [{"key": "source", "rate_s": rate_s, "limit": limit}], "stages": stages}


@given(
    stage=st.sampled_from(["fetch", "decode", "transform"]),
    world_size=st.integers(2, 9),
    rank=st.integers(0, 8),
    speeds=st.lists(st.floats(0.97, 1.03), min_size=9, max_size=9),
)
def test_the_slow_rank_and_its_stage_are_named(stage, world_size, rank, speeds):
    rank %= world_size
    ranks = [result(1e6 * speed, "step") for speed in speeds[:world_size]]
    ranks[rank] = result(2e5, stage, **{stage: 2.1e5})
    found = compare_ranks(ranks)
    assert (found["rank"], found["stage"]) == (rank, stage)
    assert found["lost_share"] == pytest.approx(1 - found["rates"][rank] / 1_000_000, abs=0.03)


def test_ranks_that_differ_by_chance_are_not_accused():
    found = compare_ranks([result(1e6, "step"), result(0.97e6, "step"), result(1e6, "step")])
    assert found["rank"] is None
    assert "No rank" in found["sentence"]


def test_one_rank_alone_cannot_be_compared():
    with pytest.raises(ValueError, match="two results"):
        compare_ranks([result(1e6, "step")])


def test_the_command_names_the_slow_rank(tmp_path, capsys):
    quick, slow = result(1e6, "step"), result(2e5, "fetch", fetch=2e5)
    for i, rank in enumerate((quick, slow, quick)):
        (tmp_path / f"rank{i}.json").write_text(json.dumps(rank))
    files = [str(tmp_path / f"rank{i}.json") for i in range(3)]
    assert main(["doctor", "--ranks", *files]) == 0
    out = capsys.readouterr().out
    assert "Rank 1 holds the others up" in out
    assert "fetch" in out
    (tmp_path / "rank0.json").write_text("{}")
    assert main(["doctor", "--ranks", *files]) == 2
    assert "stoker doctor --json" in capsys.readouterr().err
