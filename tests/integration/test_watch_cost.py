"""A small version of the benchmark, so that it cannot rot; what it measures here says nothing."""

import pytest

watch = pytest.importorskip("benchmarks.watch")


def test_the_cost_of_watching_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "NUM_STEPS", 5)
    monkeypatch.setattr(watch, "NUM_BLOCKS", 2)
    monkeypatch.setattr(watch, "NUM_EMPTY_STEPS", 500)
    answer = watch.run(None, tmp_path, num_rounds=2)
    assert len(answer.ratios) == 2
    assert answer.promise == 0.99
    assert answer.ours > 0
