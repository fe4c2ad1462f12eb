"""Two real ranks: the one whose data is late is named by both, through the files that they share."""

import json
from pathlib import Path

import pytest
from tests.processes import ends_of
from tests.unit.doctor.watched_loops import Clock, PlannedLoader

import stoker

dist = pytest.importorskip("torch.distributed")


def train(rank, num_ranks, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=num_ranks)
    loader = PlannedLoader(Clock(), 60, lambda i: 0.031 if rank else 0.001)
    watched = stoker.watch(loader, clock=loader.clock, ranks=f"{folder}/ranks")
    for _ in watched:
        loader.clock.pass_s(0.010 if rank else 0.040)
    dist.barrier()
    Path(folder, f"report-{rank}").write_text(json.dumps(watched.report().to_json()))
    dist.destroy_process_group()


@pytest.mark.torch
def test_the_rank_whose_data_is_late_is_named_on_every_rank(tmp_path):
    assert ends_of(train, 2, tmp_path) == {0}
    for rank in range(2):
        report = json.loads((tmp_path / f"report-{rank}").read_text())
        assert (report["rank"], report["world_size"]) == (rank, 2)
        assert [figures["rank"] for figures in report["ranks"]] == [0, 1]
        straggler = report["findings"][0]
        assert (straggler["name"], straggler["rank"]) == ("straggler", 1)
