"""One slow rank among several is named, with the stage in which it lags."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor.plans_made import changed, on, source_plan

from stoker.cli import main
from stoker.doctor.bounds import supply_of
from stoker.doctor.causes import limit_of
from stoker.doctor.flow import rate_of
from stoker.doctor.ranks import compare_ranks


def result(plan):
    """What `--json` has of a rank with this plan, as far as ranks are compared by it."""
    stages = [
        {"key": stage.key, "supply": {"samples_s": supply_of(dataclasses.replace(plan, stages=(stage,)))}}
        for stage in plan.stages
        if stage.key in ("fetch", "decode", "transform", "convert", "publish", "gather")
    ]
    return {"paths": [{"is_today": True, "predicted_s": rate_of(plan), "limit": limit_of(plan)}], "stages": stages}


SLOW = {
    "fetch": on(source_plan(), network_bytes_s=30e6, connection_bytes_s=30e6),
    "decode": source_plan(decode=changed("decode", cpu_s=40e-6)),
    "transform": source_plan(transform=changed("transform", cpu_s=5e-6, gil_s=5e-6)),
}


@given(
    stage=st.sampled_from(sorted(SLOW)),
    world_size=st.integers(2, 9),
    rank=st.integers(0, 8),
    speeds=st.lists(st.floats(0.97, 1.03), min_size=9, max_size=9),
)
def test_the_slow_rank_and_its_stage_are_named(stage, world_size, rank, speeds):
    rank %= world_size
    ranks = [result(on(source_plan(), cores=8 * speed)) for speed in speeds[:world_size]]
    ranks[rank] = result(SLOW[stage])
    found = compare_ranks(ranks)
    assert (found.rank, found.stage) == (rank, stage)
    assert found.lost_share == pytest.approx(1 - found.rates[rank] / 1_000_000, abs=0.05)


def test_ranks_that_differ_by_chance_are_not_accused():
    found = compare_ranks([result(source_plan()), result(on(source_plan(), cores=7.8)), result(source_plan())])
    assert found.rank is None
    assert "No rank" in found.sentence


def test_one_rank_alone_cannot_be_compared():
    with pytest.raises(ValueError, match="two results"):
        compare_ranks([result(source_plan())])


def test_the_command_names_the_slow_rank(tmp_path, capsys):
    for i, plan in enumerate((source_plan(), SLOW["fetch"], source_plan())):
        (tmp_path / f"rank{i}.json").write_text(json.dumps(result(plan)))
    files = [str(tmp_path / f"rank{i}.json") for i in range(3)]
    assert main(["doctor", "--ranks", *files]) == 0
    out = capsys.readouterr().out
    assert "Rank 1 holds the others up" in out
    assert "fetch" in out
    (tmp_path / "rank0.json").write_text("{}")
    assert main(["doctor", "--ranks", *files]) == 2
    assert "stoker doctor --json" in capsys.readouterr().err
