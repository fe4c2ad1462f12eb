"""The contest with other loaders: that it counts what is delivered, and finds out who loses rows."""

import argparse
import sys
from pathlib import Path

import pytest
from benchmarks.rivals import contestants, outcome, table

from stoker.demo.data import make_data

WAYS = {contestant.key: contestant for contestant in contestants.CONTESTANTS}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("rivals") / "data", num_rows=1_500)


@pytest.mark.parametrize(
    "key",
    [
        "stoker",
        "stoker_scalars",
        "arrow",
        pytest.param("torch_batches", marks=pytest.mark.torch),
        pytest.param("torch_samples", marks=[pytest.mark.torch, pytest.mark.slow]),
    ],
)
def test_a_way_that_needs_nothing_else_delivers_every_row(key, data, tmp_path):
    arguments = {"--data": data.folder, "--cache": tmp_path, "--batch-size": 300, "--epochs": 2, "--num-workers": 1}
    truth = outcome.Truth(num_rows=data.num_rows, checksum=data.checksum)
    got = outcome.measure(WAYS[key], Path(sys.executable), truth, arguments=arguments)
    assert got.error == ""
    assert (got.num_rows, got.has_lost_rows, got.is_cut) == (1_500, False, False)
    assert len(got.missing) == (4 if key == "stoker_scalars" else 0)


def _told(*epochs, missing=()):
    whole = {"num_rows": 100, "checksum": 5, "seconds": 2.0, "first_batch_s": 0.1, "is_whole": True}
    return {
        "name": "a rival",
        "versions": {},
        "note": "",
        "prepare_s": 3.0,
        "missing": list(missing),
        "refused": {},
        "peak_bytes": 1,
        "epochs": [whole | epoch for epoch in epochs],
    }


@pytest.mark.parametrize(
    ("epoch", "lost"), [({}, False), ({"num_rows": 99}, True), ({"checksum": 6}, True), ({"num_rows": 101}, True)]
)
def test_a_lost_a_doubled_and_a_changed_row_show(epoch, lost):
    truth = outcome.Truth(num_rows=100, checksum=5)
    assert outcome.judge(WAYS["ray"], _told({}, epoch), truth).has_lost_rows is lost


def test_an_epoch_left_early_is_no_loss_and_is_said_to_be_cut():
    got = outcome.judge(
        WAYS["ray"], _told({}, {"num_rows": 60, "is_whole": False}), outcome.Truth(num_rows=100, checksum=5)
    )
    assert (got.has_lost_rows, got.is_cut, got.warm_rows_per_s, got.cold_rows_per_s) == (False, True, 30.0, 20.0)


def test_ours_is_compared_on_the_columns_that_the_other_delivers():
    def of(key, rate, missing=()):
        return outcome.Outcome(key=key, name=key, warm_rows_per_s=rate, missing=missing)

    everyone = [of("stoker", 100), of("stoker_scalars", 300), of("ray", 10), of("petastorm", 10, ("country",))]
    assert [table.factor_of(one, everyone) for one in everyone] == [None, None, 10, 30]


def test_a_contestant_that_fails_is_in_the_table_with_its_own_words(tmp_path):
    truth = outcome.Truth(num_rows=100, checksum=5)
    got = outcome.measure(WAYS["arrow"], Path(sys.executable), truth, arguments={"--data": tmp_path})
    assert "required: --cache" in got.error
    fine = outcome.Outcome(key="stoker", name="Stoker", warm_rows_per_s=1000.0)
    path = table.write_result([fine, got], argparse.Namespace(batch_size=1, workers=1, epochs=1, seconds=1.0), tmp_path)
    assert "failed" in path.read_text()
    assert path.with_suffix(".svg").read_text().startswith("<svg")
