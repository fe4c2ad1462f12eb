"""Small versions of the benchmarks, so that they cannot rot; what they measure here says nothing."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.strategies import arrays_in

import stoker
from stoker.demo.data import make_data, ranking_dataset

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
# One of each file; a few of them always.
SOME = ["batch-cost", "order-index", "watch"]
MORE = ["warm-tokens", "warm-lanes", "launches", "chunk-counts", "first-batch", "first-epoch-one-group"]
MORE += ["sharing-ssd", "compact-speed"]


def asked(module: str, *arguments: str) -> str:
    """Return what a benchmark prints that was asked small questions."""
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src"), "STOKER_BENCHMARKS_SMALL": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", module, "--rounds", "1", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: what is promised of large sizes does not hold of small ones
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("questions", [SOME, pytest.param(MORE, marks=pytest.mark.slow)], ids=["some", "more"])
def test_every_kind_of_question_is_answered(questions):
    printed = asked("benchmarks", "--rows", "9000", *questions)
    assert [line.split()[-1] for line in printed.splitlines() if line.startswith("measuring")] == questions
    assert len([line for line in printed.splitlines() if " / " in line and line[0] != " "]) >= len(questions) - 3


@pytest.mark.slow
@pytest.mark.parametrize("group", ["warm", "first", "order", "sharing", "memory", "tracing", "lock", "lock-16"])
def test_every_question_is_answered(group):
    assert "measuring" in asked("benchmarks", "--rows", "30000", group)


@pytest.mark.slow
def test_every_question_about_a_device_is_answered():
    questions = ["gpu-copy", "gpu-ranking-small", "gpu-language"]
    printed = asked("benchmarks.gpu", "--rows", "3000", "--device", "cpu", *questions)
    assert "DataLoader" in printed


def test_the_plain_way_feeds_the_same_rows(tmp_path):
    """Compared with ours, a DataLoader must do the same work."""
    from benchmarks.gpu.plain import PlainRanking, PlainTokens, on_device

    data = make_data(tmp_path / "data", num_rows=3_000)
    with stoker.Loader(ranking_dataset(data.paths), batch_size=64) as loader:
        ours = next(iter(loader))
    plain = next(on_device(PlainRanking(data.paths, 64), torch.device("cpu"), num_workers=0))
    for name, field in plain.items():
        for mine, right in zip(*map(arrays_in, (field, ours[name])), strict=True):
            if name == "dense":  # theirs has the context in it
                mine = mine[:, -right.shape[1] :]
            assert mine.tolist() == right.tolist(), name

    (tmp_path / "tokens").mkdir()
    pq.write_table(pa.table({"tokens": [[1, 2, 3], [], [4, 5, 6, 7], [8]]}), tmp_path / "tokens" / "0.parquet")
    rows = PlainTokens([tmp_path / "tokens" / "0.parquet"], 2, 3)
    found = [batch["tokens"].tolist() for batch in itertools.islice(rows, 2)]
    assert found == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 1], [2, 3, 4]]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_questions_about_one_say_so(monkeypatch, capsys):
    from benchmarks.gpu.__main__ import main

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert main([]) == 2
    assert "no GPU" in capsys.readouterr().err
