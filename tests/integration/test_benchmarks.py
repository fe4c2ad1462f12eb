"""Small versions of the benchmarks, so that they cannot rot; what they measure here says nothing."""

import functools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.strategies import arrays_in

from stoker.demo.data import make_data

warm_gather = pytest.importorskip("benchmarks.warm_gather")
against_copy = pytest.importorskip("benchmarks.against_copy")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "question", ["run", "run_stacked", "run_named", "run_everything", "run_batch_cost", "run_batch_cost_named"]
)
def test_every_warm_question_is_answered(question, tmp_path, monkeypatch):
    monkeypatch.setattr(warm_gather, "NUM_SMALL", 50)
    monkeypatch.setattr(against_copy, "COPY_BYTES", 1 << 20)
    data = make_data(tmp_path / "data", num_rows=9_000)
    answer = getattr(warm_gather, question)(data, tmp_path, num_rounds=1)
    assert answer.ours > 0
    assert answer.ceiling > 0
    assert answer.promise is not None
    assert len(answer.ratios) == 1


@pytest.mark.parametrize("question", ["run_mixture", "run_lanes"])
def test_every_question_about_batches_of_several_windows_is_answered(question, tmp_path):
    from benchmarks import mixed

    answer = getattr(mixed, question)(make_data(tmp_path / "data", num_rows=30_000), tmp_path, num_rounds=1)
    assert answer.ours > 0
    assert answer.remarks


@pytest.mark.parametrize("question", ["run_images", "run_tokens", "run_wide"])
def test_every_question_about_other_rows_is_answered(question, tmp_path, monkeypatch):
    from benchmarks import workloads

    monkeypatch.setattr(workloads, "NUM_BYTES", 4 << 20)
    monkeypatch.setattr(workloads, "_GROUP_BYTES", 1 << 20)
    monkeypatch.setattr(against_copy, "COPY_BYTES", 1 << 20)
    answer = getattr(workloads, question)(None, tmp_path, num_rounds=1)
    assert answer.ours > 0
    assert answer.promise is not None


@pytest.mark.parametrize("question", ["run_bytes", "run_speed"])
def test_every_question_about_narrow_fields_is_answered(question, tmp_path):
    from benchmarks import compact

    answer = getattr(compact, question)(make_data(tmp_path / "data", num_rows=9_000), tmp_path, num_rounds=1)
    assert answer.ours > 0
    assert answer.remarks


def test_the_questions_about_copies_to_a_device_are_answered(tmp_path, monkeypatch):
    from benchmarks.gpu import copying
    from tests.unit.test_torch_resident import Stream

    import stoker
    from stoker.torch import TorchLoader
    from stoker.torch.delivery import DeviceDelivery
    from stoker.torch.resident import ResidentRows

    class Resident(TorchLoader):
        """A loader to a device that copies at once."""

        def __init__(self, dataset, *, device, resident, **options):
            del device
            stream = Stream()
            self._torch_delivery = DeviceDelivery(stream, resident=ResidentRows(stream, limit_bytes=resident))
            stoker.Loader.__init__(self, dataset, **options)

    monkeypatch.setattr(copying, "COPY_BYTES", 1 << 20)
    data, device = make_data(tmp_path / "data", num_rows=9_000), torch.device("cpu")
    assert copying.run_copy(data, tmp_path, device=device, num_rounds=1).ours > 0
    answer = copying.run_resident(data, tmp_path, device=device, num_rounds=1, make=Resident)
    assert answer.ours > 0
    assert not answer.remarks[0].startswith("0.00 GB")


def test_the_questions_about_real_steps_are_answered(tmp_path, monkeypatch):
    from benchmarks import workloads
    from benchmarks.gpu import steps

    monkeypatch.setattr(workloads, "NUM_BYTES", 1 << 20)
    monkeypatch.setattr(workloads, "_GROUP_BYTES", 1 << 18)
    monkeypatch.setattr(steps, "NUM_STEPS", 3)
    monkeypatch.setattr(steps, "_NUM_FIRST", 1)
    monkeypatch.setattr(steps, "Ranking", functools.partial(steps.Ranking, buckets=1_000, width=8))
    monkeypatch.setattr(steps, "Language", functools.partial(steps.Language, width=64, num_layers=1))
    data, options = (
        make_data(tmp_path / "data", num_rows=3_000),
        {"device": torch.device("cpu"), "num_rounds": 1, "num_workers": 0},
    )
    for answer in (
        steps.run_ranking(data, tmp_path, batch_size=64, **options),
        steps.run_language(data, tmp_path, batch_size=2, length=8, **options),
    ):
        assert 0 < answer.ours <= 1
        assert answer.promise == 0.97
        assert "DataLoader" in answer.remarks[-1]


def test_the_plain_way_feeds_the_same_rows(tmp_path):
    """Compared with ours, a DataLoader must do the same work."""
    import itertools

    from benchmarks.gpu.plain import PlainRanking, PlainTokens, on_device

    import stoker
    from stoker.demo.ranking import COUNTRIES

    data = make_data(tmp_path / "data", num_rows=3_000)
    fields = {
        "dense": stoker.Field("float32", columns=["context_*", "dense_*"]),
        "ids": stoker.Field("int64", columns="id_*"),
        "country": stoker.Field("int32", vocabulary=COUNTRIES),
    }
    dataset = stoker.Dataset([str(path) for path in data.paths], fields=fields)
    with stoker.Loader(dataset, batch_size=64) as loader:
        ours = next(iter(loader))
    plain = next(on_device(PlainRanking(data.paths, 64), torch.device("cpu"), num_workers=1))
    for name, field in plain.items():
        for mine, right in zip(*map(arrays_in, (field, ours[name])), strict=True):
            assert mine.tolist() == right.tolist(), name

    (tmp_path / "tokens").mkdir()
    pq.write_table(pa.table({"tokens": [[1, 2, 3], [], [4, 5, 6, 7], [8]]}), tmp_path / "tokens" / "0.parquet")
    rows = PlainTokens([tmp_path / "tokens" / "0.parquet"], 2, 3)
    found = [batch["tokens"].tolist() for batch in itertools.islice(rows, 2)]
    assert found == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 1], [2, 3, 4]]]


def test_without_a_gpu_the_questions_about_one_say_so(monkeypatch, capsys):
    from benchmarks.gpu.__main__ import main

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu"])
    assert main() == 2
    assert "no GPU" in capsys.readouterr().err


@pytest.mark.parametrize("question", ["run", "run_many", "run_epochs"])
def test_every_question_about_many_chunks_and_epochs_is_answered(question, tmp_path, monkeypatch):
    from benchmarks import chunk_counts

    monkeypatch.setattr(chunk_counts, "NUM_ROWS", 1 << 15)
    monkeypatch.setattr(chunk_counts, "NUM_EPOCHS", 5)
    monkeypatch.setattr(chunk_counts, "NUM_SOME", 32)
    monkeypatch.setattr(chunk_counts, "NUM_MANY", 128)
    answer = getattr(chunk_counts, question)(make_data(tmp_path / "data", num_rows=3_000), tmp_path, num_rounds=1)
    assert answer.ours > 0
    assert answer.promise is not None
    assert len(answer.ratios) == 1


@pytest.mark.parametrize("question", ["run_first_batch", "run_first_warm_epoch"])
def test_every_question_about_new_processes_is_answered(question, tmp_path, monkeypatch):
    from benchmarks import chunk_counts, new_process

    monkeypatch.setattr(chunk_counts, "NUM_ROWS", 1 << 15)
    answer = getattr(new_process, question)(make_data(tmp_path / "data", num_rows=3_000), tmp_path, num_rounds=1)
    assert answer.ours > 0
    assert len(answer.ratios) == 1


def test_the_question_about_memory_is_answered(tmp_path, monkeypatch):
    from benchmarks import memory

    monkeypatch.setattr(memory, "NUM_EPOCHS", 6)
    answer = memory.run(make_data(tmp_path / "data", num_rows=30_000), tmp_path, num_rounds=1)
    assert answer.promise == 0.9
    assert len(answer.ratios) == 1
    assert "ahead" in answer.remarks[0]


def test_the_question_about_a_cold_disk_is_answered(tmp_path, monkeypatch):
    from benchmarks import cold_disk

    from stoker.loader.windows import standing

    monkeypatch.setattr(cold_disk, "CHUNK_BYTES", 256 << 10)
    monkeypatch.setattr(standing, "MAX_CHUNKS", 0)  # chunks as small as these would stay mapped
    try:
        answer = cold_disk.run(make_data(tmp_path / "data", num_rows=9_000), tmp_path, num_rounds=1)
    except (AssertionError, OSError) as error:
        if "page cache" in str(error) or isinstance(error, OSError):
            pytest.skip(f"files cannot be dropped from memory here: {error}")
        raise
    assert answer.ours > 0
    assert answer.promise == 0.8


@pytest.mark.parametrize(
    ("question", "promise"),
    [
        ("run", 0.75),
        ("run_on_all", 0.75),
        ("run_against_kept", None),
        ("run_on_one_group", None),
        ("run_on_wide", 0.75),
        ("run_on_images", 0.75),
        ("run_on_tokens", 0.75),
    ],
)
def test_every_question_about_first_epochs_is_answered(question, promise, tmp_path, monkeypatch):
    from benchmarks import first_epoch, free_pages, workloads

    monkeypatch.setattr(free_pages, "GIVEN_BACK_S", 0.0)
    monkeypatch.setattr(workloads, "NUM_BYTES", 8 << 20)
    monkeypatch.setattr(workloads, "_GROUP_BYTES", 4 << 20)
    data = make_data(tmp_path / "data", num_rows=9_000)
    answer = getattr(first_epoch, question)(data, tmp_path, num_rounds=1)
    assert answer.ours > 0
    assert answer.promise == promise
    assert "seconds of the kernel" in answer.remarks[0]
    assert not list(tmp_path.glob("pages"))


@pytest.mark.parametrize("question", ["index", "resume", "explain"])
def test_every_question_about_the_order_is_answered(question, tmp_path, monkeypatch):
    from benchmarks import order

    monkeypatch.setattr(order, "NUM_SAMPLES", 10**6)
    monkeypatch.setattr(order, "NUM_CHUNKS", 100)
    monkeypatch.setattr(order, "NUM_FILES", 10)
    monkeypatch.setattr(order, "SIZES", (65_536,))
    data = make_data(tmp_path / "data", num_rows=9_000)
    answer = getattr(order, question)(data, tmp_path, num_rounds=1)
    assert answer.promise is not None
    assert len(answer.ratios) == 1
    assert answer.ours > 0


@pytest.mark.parametrize("question", ["run_ssd", "run_carried", "run_unique", "run_expand"])
def test_every_question_about_sharing_is_answered(question, tmp_path):
    from benchmarks import sharing

    data = make_data(tmp_path / "data", num_rows=9_000)
    answer = getattr(sharing, question)(data, tmp_path, num_rounds=1)
    assert answer.ours > 0
    if question in ("run_ssd", "run_carried"):  # nothing is timed
        assert answer.promise is not None
        assert answer.promise <= answer.ratio <= 1.05
