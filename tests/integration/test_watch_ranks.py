"""Two real ranks: the one whose data is late is named by both, through the files that they share."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

RANK = """
import json, sys
import torch.distributed as dist
import stoker
from tests.unit.doctor.watched_loops import Clock, PlannedLoader

rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
loader = PlannedLoader(Clock(), 60, lambda i: 0.031 if rank else 0.001)
watched = stoker.watch(loader, clock=loader.clock, ranks=meeting + "-ranks")
for batch in watched:
    loader.clock.pass_s(0.010 if rank else 0.040)
dist.barrier()
report = watched.report()
print(json.dumps(report.to_json()))
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_the_rank_whose_data_is_late_is_named_on_every_rank(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    done = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], done
    for rank, (out, _) in enumerate(done):
        report = json.loads(out)
        assert (report["rank"], report["world_size"]) == (rank, 2)
        assert [figures["rank"] for figures in report["ranks"]] == [0, 1]
        straggler = report["findings"][0]
        assert (straggler["name"], straggler["rank"]) == ("straggler", 1)
