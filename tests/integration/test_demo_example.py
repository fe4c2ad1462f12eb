"""The example learns the planted label from the demo's data."""

import importlib.util
from pathlib import Path

import pytest

from stoker.demo.data import make_data

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_ranking.py"

pytestmark = pytest.mark.torch


def _example():
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("train_ranking", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_ranks_rows_it_has_not_seen_better_than_guessing(tmp_path, capsys):
    data = make_data(tmp_path / "data", num_rows=9_000)
    found = _example().train(data.folder, epochs=2, batch_size=512, cache=tmp_path / "cache")
    assert found[-1] > 0.6
    assert capsys.readouterr().out.count("AUC") == 2


def test_auc_is_one_for_a_perfect_order_and_a_half_for_none():
    example = _example()
    import torch

    labels = torch.tensor([0, 0, 1, 1])
    assert example.auc(torch.tensor([0.1, 0.2, 0.3, 0.4]), labels) == 1
    assert example.auc(torch.tensor([0.4, 0.3, 0.2, 0.1]), labels) == 0
    assert example.auc(torch.tensor([0.1, 0.4, 0.2, 0.3]), labels) == 0.5
