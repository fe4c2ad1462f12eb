"""Fields that are kept narrower come as they would without, but for the rounding that was asked for."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.strategies import arrays_in
from tests.unit.cache.samples import same

import stoker
from stoker import FieldError, Ragged, Scaled, Spec
from stoker.cli import main

KEPT = {
    "dense": "float16",
    "embedding": "bfloat16",
    "share_of": Scaled(0.0, 1.0),
    "price": Scaled(-0.1, 1.3, "uint16"),
    "ids": "int32",
    "code": "uint16",
    "i8": "int8",
    "i16": "int16",
    "u8": "uint8",
    "u32": "uint32",
    "flags": "bits",
    "tokens": "uint16",
    "ratings": "float16",
}
NUM_ROWS = 700


def write(folder):
    rng = np.random.default_rng(3)
    folder.mkdir(exist_ok=True)
    for i, num in enumerate((300, 0, NUM_ROWS - 300)):
        counts = rng.integers(0, 9, num)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        total = int(offsets[-1])
        columns = {
            "row": np.arange(num, dtype=np.int32) + 1000 * i,
            "code": rng.integers(0, 60_000, num),
            "share_of": rng.random(num, dtype=np.float32),
            "price": rng.random(num, dtype=np.float32),
            **{
                name: rng.integers(np.iinfo(KEPT[name]).min, np.iinfo(KEPT[name]).max, num, np.int64, endpoint=True)
                for name in ("i8", "i16", "u8", "u32")
            },
            "query": np.arange(num) // 5,
            **{f"dense_{k}": rng.standard_normal(num, dtype=np.float32) for k in range(5)},
            **{f"id_{k}": rng.integers(0, 1 << 31, num) for k in range(3)},
            **{f"flag_{k}": rng.random(num) < 0.5 for k in range(11)},
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(rng.standard_normal(num * 6, dtype=np.float32)), 6),
            "tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 50_000, total))),
            "ratings": pa.ListArray.from_arrays(
                pa.array(offsets), pa.array(rng.standard_normal(total, dtype=np.float32))
            ),
        }
        pq.write_table(pa.table(columns), folder / f"{i}.parquet", row_group_size=128)
    return folder


PATTERNS = {"dense": "dense_*", "ids": "id_*", "flags": "flag_*"}


def fields(*, is_compact):
    return {
        name: stoker.Field(columns=PATTERNS.get(name), storage_dtype=storage_dtype if is_compact else None)
        for name, storage_dtype in KEPT.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("compact") / "data")


def dataset(folder, *, is_compact, **options):
    return stoker.Dataset(folder, fields=fields(is_compact=is_compact), chunk_size=8_000, **options)


def rounded(array, name):
    """An array as it would come from what is kept of it."""
    kept = KEPT.get(name)
    if isinstance(array, Ragged):
        return Ragged(rounded(array.values, name), array.offsets)
    if kept == "float16":
        return array.astype(np.float16).astype(np.float32)
    if kept == "bfloat16":  # to the nearest, ties to even
        bits = array.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    if isinstance(kept, Scaled):
        steps = np.rint((array.astype(np.float64) - kept.low) / kept.step)
        return steps.astype(np.float32) * np.float32(kept.step) + np.float32(kept.low)
    return array


def check(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name in one:
            assert same(one[name], rounded(other[name], name)), name


def plain(field):
    if isinstance(field, stoker.Ragged | stoker.Deduplicated):
        return field.map(plain)
    return np.ascontiguousarray(field if isinstance(field, np.ndarray) else field.numpy())


def batches(loader, num_epochs=1):
    with loader:
        return [{name: plain(field) for name, field in batch.items()} for _ in range(num_epochs) for batch in loader]


OPTIONS = {"batch_size": 64, "shuffle": True, "seed": 5, "window": 3}
ORDERS = {
    "rows": {},
    "none": {"shuffle": False},
    "one at a time": {"prefetch": 0, "num_threads": 1},
    "padded": {"remainder": "pad", "rank": 1, "world_size": 3},
    "groups": {"group_by": "query", "batch_size": 10},
    "windows": {"sequence": stoker.NGram({0: ["dense", "flags", "tokens"], 2: ["flags", "code"]})},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("share", [None, {"query": ["code"]}], ids=["plain", "shared"])
def test_batches_are_those_that_are_kept_wide_cold_and_warm(folder, tmp_path, order, share):
    options = OPTIONS | ORDERS[order]
    if "sequence" in options:
        options.pop("window"), options.pop("shuffle")
    expected = batches(stoker.Loader(dataset(folder, is_compact=False, deduplicate=share), **options), 2)
    compact = dataset(folder, is_compact=True, deduplicate=share)
    check(batches(stoker.Loader(compact, cache=tmp_path, **options), 2), expected)
    check(batches(stoker.Loader(compact, cache=tmp_path, **options), 2), expected)


def test_the_record_is_as_much_smaller_and_the_spec_says_what_is_delivered(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    told = {}
    for is_compact in (False, True):
        script, asked = tmp_path / f"inspected_{is_compact}.py", fields(is_compact=is_compact)
        script.write_text(f"from stoker import Dataset, Field, Scaled\nd = Dataset({str(folder)!r}, fields={asked})\n")
        assert main(["inspect", f"{script.name}:d", "--json"]) == 0
        told[is_compact] = json.loads(capsys.readouterr().out)
    # 5 float32, 3 int64, 11 bools, 6 float32, 2 float32, 5 int64, and an int32 and an int64 that stay.
    assert [told[is_compact]["record_bytes"] for is_compact in (False, True)] == [192, 64]
    assert {"float32[5], kept as float16", "bool[11], kept as bits", "int64, kept as uint32"} <= {
        column["becomes"] for column in told[True]["columns"]
    }
    with stoker.Loader(dataset(folder, is_compact=True), **OPTIONS) as loader:
        assert loader.spec == Spec.from_json(told[True]["spec"]).delivered == Spec.from_json(told[False]["spec"])


def test_augment_sees_values_as_they_are_delivered(folder):
    seen = []

    def augment(batch, rng):
        seen.append({name: getattr(array, "dtype", None) for name, array in batch.items()})
        assert batch["flags"].shape[1:] == (11,)
        return {"twice": batch["dense"] * 2}

    found = batches(stoker.Loader(dataset(folder, is_compact=True), augment=augment, **OPTIONS))
    expected = batches(stoker.Loader(dataset(folder, is_compact=False), **OPTIONS))
    assert seen[0]["dense"] == np.float32
    np.testing.assert_array_equal(found[0]["twice"], rounded(expected[0]["dense"], "dense") * 2)


def test_tokens_are_packed_in_their_narrow_form(folder):
    options = {"batch_size": 8, "sequence": stoker.Pack("tokens", length=16, per_segment=["flags", "dense"], pad=7)}
    expected = batches(stoker.Loader(dataset(folder, is_compact=False), **options))
    check(batches(stoker.Loader(dataset(folder, is_compact=True), **options)), expected)
    with pytest.raises(ValueError, match="uint16"):
        stoker.Loader(dataset(folder, is_compact=True), batch_size=8, sequence=stoker.Pack("tokens", length=16, pad=-1))


def test_a_mixture_mixes_them(folder):
    def mixture(is_compact):
        sets = {f"set {i}": dataset(folder, is_compact=is_compact) for i in range(2)}
        return stoker.Mixture(sets, weights=dict.fromkeys(sets, 1.0))

    expected = batches(stoker.Loader(mixture(False), **OPTIONS))
    check(batches(stoker.Loader(mixture(True), **OPTIONS)), expected)


@pytest.mark.parametrize(
    ("name", "storage_dtype"), [("code", "uint8"), ("ids", "int16"), ("dense", Scaled(0, 1)), ("tokens", "int8")]
)
def test_a_value_that_does_not_fit_is_an_error_with_column_and_file(folder, name, storage_dtype):
    asked = fields(is_compact=False)
    asked[name] = stoker.Field(asked[name].dtype, columns=asked[name].columns, storage_dtype=storage_dtype)
    with pytest.raises(FieldError, match=r"does not fit .*0\.parquet") as caught:
        batches(stoker.Loader(stoker.Dataset(folder, fields=asked), batch_size=64))
    assert caught.value.columns
    assert name == "tokens" or "counted from 0" in str(caught.value)  # of a list the file is told


def test_a_form_that_does_not_suit_is_refused_before_anything_is_read(folder):
    asked = {"code": stoker.Field(storage_dtype="float16"), "ratings": stoker.Field(storage_dtype="int8")}
    with pytest.raises(FieldError, match=r"(?s)'code': storage_dtype: .*'ratings': storage_dtype: "):
        stoker.Loader(stoker.Dataset(folder, fields=asked), batch_size=64)


@pytest.mark.torch
@pytest.mark.parametrize("order", ["rows", "padded", "groups", "windows"])
@pytest.mark.parametrize("share", [None, {"query": ["code", "flags"]}], ids=["plain", "shared"])
def test_tensors_are_the_same_and_fewer_bytes_cross(folder, order, share):
    pytest.importorskip("torch")
    from tests.device import DeviceLoader

    from stoker.torch import TorchLoader

    options = OPTIONS | ORDERS[order]
    if "sequence" in options:
        options.pop("window"), options.pop("shuffle")
    expected = batches(stoker.Loader(dataset(folder, is_compact=False, deduplicate=share), **options))
    compact = dataset(folder, is_compact=True, deduplicate=share)
    check(batches(TorchLoader(compact, **options)), expected)
    crossed = {}
    for is_compact in (False, True):
        loader = DeviceLoader(dataset(folder, is_compact=is_compact, deduplicate=share), **options)
        found = batches(loader)
        crossed[is_compact] = loader.stream.num_bytes
        if is_compact:
            check(found, expected)
    assert crossed[True] < 0.8 * crossed[False]


@pytest.mark.torch
def test_on_a_device_augmented_batches_and_their_memory_are_whole(folder):
    pytest.importorskip("torch")
    from tests.device import DeviceLoader

    def augment(batch, rng):
        return {**batch, "dense": batch["dense"] + 1}

    compact = dataset(folder, is_compact=True)
    expected = batches(stoker.Loader(compact, augment=augment, **OPTIONS))
    found = batches(DeviceLoader(compact, augment=augment, **OPTIONS))
    for one, other in zip(found, expected, strict=True):
        assert all(same(one[name], other[name]) for name in other)
    with DeviceLoader(compact, **OPTIONS) as loader:
        for batch in loader:
            parts = [part for field in batch.values() for part in arrays_in(field)]
            assert all(part.untyped_storage().data_ptr() in loader.stream.memory for part in parts)


@pytest.mark.torch
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_torch_data_set_has_them_too(folder, tmp_path, num_workers):
    torch = pytest.importorskip("torch")
    from stoker.torch import TorchDataset

    expected = batches(stoker.Loader(dataset(folder, is_compact=False), **OPTIONS))
    made = TorchDataset(dataset(folder, is_compact=True), cache=tmp_path, **OPTIONS)
    loader = torch.utils.data.DataLoader(made, batch_size=None, num_workers=num_workers)
    check([{name: plain(field) for name, field in batch.items()} for batch in loader], expected)
