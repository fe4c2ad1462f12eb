"""What `augment` may return, what is said where it goes wrong, and seeds that no rank changes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker

NUM_ROWS = 90


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    row = np.arange(NUM_ROWS)
    table = pa.table({"id": row, "x": row * 0.5, "group": row // 5, "words": [[int(i)] * (i % 3) for i in row]})
    for k in range(3):
        pq.write_table(table[30 * k : 30 * k + 30], folder / f"{k}.parquet")
    return stoker.Dataset(folder)


def at_step_2(change):
    """An augment that goes wrong when it sees the rows of step 2."""

    def turned(batch, rng):
        return change(batch) if 20 in batch["id"] else batch

    return turned


def nothing(batch):
    batch["x"] += 1


def stop(batch):
    raise StopIteration


def drop_in_place(batch):
    batch["id"] = batch["id"][1:]
    return batch


WRONG = {
    "nothing": (nothing, TypeError, "returned None, not a dict.*return batch"),
    "a list": (lambda batch: [*batch.values()], TypeError, "returned a list, not a dict"),
    "numbered": (lambda batch: {0: batch["x"]}, TypeError, "key 0"),
    "a field of nothing": (lambda batch: {**batch, "x": None}, TypeError, "None as field 'x'"),
    "fewer rows": (lambda batch: {name: field[1:] for name, field in batch.items()}, ValueError, "'id' with 7 rows"),
    "fewer lists": (lambda batch: {**batch, "words": batch["words"][:3]}, ValueError, "'words' with 3 rows.* has 8"),
    "more rows": (lambda batch: {**batch, "x": np.repeat(batch["x"], 2)}, ValueError, "'x' with 16 rows"),
    "one less in place": (drop_in_place, ValueError, "'id' with 7 rows"),
    "a number": (lambda batch: {**batch, "x": batch["x"].sum()}, ValueError, "'x' that has no rows"),
    "fewer of another name": (lambda batch: {"y": batch["x"][1:]}, ValueError, "'y', none with as many rows.*: 8"),
    "no fields": (lambda batch: {}, ValueError, "no field"),
    "the end": (stop, RuntimeError, "raised StopIteration"),
    "an error of its own": (lambda batch: batch["y"], KeyError, "y"),
}


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("kind", WRONG)
def test_what_augment_does_wrong_is_said_with_its_name_and_the_step(dataset, kind, prefetch):
    change, error, words = WRONG[kind]
    with stoker.Loader(dataset, batch_size=8, augment=at_step_2(change), prefetch=prefetch, num_threads=1) as loader:
        batches = iter(loader)
        assert [len(next(batches)["id"]) for _ in range(2)] == [8, 8]
        with pytest.raises(error, match=words) as found:
            next(batches)
    told = "\n".join([str(found.value), *found.value.__notes__])
    assert "augment (at_step_2.<locals>.turned), on step 2 of" in told


def test_augment_may_add_rename_and_leave_out(dataset):
    def augment(batch, rng):
        return {"y": batch["x"] * 2, "words": batch["words"], "scale": np.float32(3), "table": np.ones((2, 2))}

    with stoker.Loader(dataset, batch_size=8, augment=augment) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["y", "words", "scale", "table"]
    assert batch["y"].tolist() == [*map(float, range(8))]


def overwritten(batch, rng):
    return {**batch, "sample_mask": np.ones(len(batch["id"]), bool)}


def overwritten_in_place(batch, rng):
    batch["sample_mask"][:] = True
    return batch


@pytest.mark.parametrize("augment", [overwritten, overwritten_in_place])
def test_the_mask_of_padding_cannot_be_overwritten(dataset, augment):
    with (
        stoker.Loader(dataset, batch_size=8, remainder="pad", augment=augment, num_threads=1) as loader,
        pytest.raises(ValueError, match=r"augment \(overwritten.*changed 'sample_mask'"),
    ):
        list(loader)


def test_the_mask_of_padding_is_there_where_augment_leaves_it_out(dataset):
    with stoker.Loader(dataset, batch_size=8, remainder="pad", augment=lambda batch, _: {"id": batch["id"]}) as loader:
        masks = np.concatenate([batch["sample_mask"] for batch in loader])
    assert masks.sum() == NUM_ROWS
    assert len(masks) == 96


def test_rows_of_groups_may_be_left_out_where_their_offsets_say_so(dataset):
    def first_two(batch, rng):
        ids = batch["id"]
        is_kept = np.concatenate([np.arange(n) < 2 for n in np.diff(batch["group_offsets"])])
        return {"id": ids[is_kept], "group_offsets": np.arange(len(batch["group_offsets"])) * 2}

    with stoker.Loader(dataset, batch_size=5, group_by="group", augment=first_two) as loader:
        assert next(iter(loader))["id"].tolist() == [0, 1, 5, 6, 10, 11, 15, 16, 20, 21]
    wrong = lambda batch, rng: first_two(batch, rng) | {"id": batch["id"]}  # noqa: E731
    with (
        stoker.Loader(dataset, batch_size=5, group_by="group", augment=wrong, num_threads=1) as loader,
        pytest.raises(ValueError, match="'id' with 25 rows, but the batch has 10"),
    ):
        next(iter(loader))


def test_groups_that_fill_up_a_batch_are_marked_one_by_one_whatever_their_rows(dataset):
    options = {"batch_size": 7, "group_by": "group", "remainder": "pad"}
    with (
        stoker.Loader(dataset, **options) as plain,
        stoker.Loader(dataset, **options, augment=lambda batch, _: batch) as same,
    ):
        for expected, batch in zip(plain, same, strict=True):
            assert len(batch["id"]) == 35
            assert batch["id"].tolist() == expected["id"].tolist()
            assert batch["sample_mask"].tolist() == expected["sample_mask"].tolist()
        assert not batch["sample_mask"].all()


@pytest.mark.parametrize("wrong", [lambda batch: batch, lambda: None, lambda batch, rng, more: batch, "flip", 3])
def test_what_cannot_be_called_with_two_arguments_is_refused_at_once(dataset, wrong):
    with pytest.raises(TypeError, match=r"augment must be a function of batch, generator"):
        stoker.Loader(dataset, batch_size=8, augment=wrong)


# ---------------------------------------------------------------------- seeds


def with_seeds(batch, rng: stoker.SampleGenerator):
    assert rng.seeds.dtype == np.uint64
    return {"id": batch["id"], "seed": rng.seeds, "draw": np.full(len(batch["id"]), rng.random())}


def seeds_of(dataset, num_epochs=1, skip=0, **options) -> list[dict[int, int]]:
    """Seed of each row, epoch by epoch, over all ranks."""
    world_size = options.pop("world_size", 1)
    found: list[dict[int, int]] = [{} for _ in range(num_epochs)]
    for rank in range(world_size):
        with stoker.Loader(
            dataset,
            shuffle=True,
            seed=4,
            augment=with_seeds,
            rank=rank,
            world_size=world_size,
            num_threads=2,
            **options,
        ) as loader:
            for epoch in found:
                for batch in loader:
                    epoch |= zip(batch["id"].tolist(), batch["seed"].tolist(), strict=True)
    return found


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_sample_has_one_seed_an_epoch_on_any_ranks_in_any_batches(dataset, lanes):
    first, second = seeds_of(dataset, 2, batch_size=12, lanes=lanes)
    assert len(first) == len({*first.values()}) == NUM_ROWS
    assert not {*first.values()} & {*second.values()}
    for options in (
        {"batch_size": 4, "world_size": 3},
        {"batch_size": 2, "world_size": 1, "prefetch": 0},
        {"global_batch_size": 10, "world_size": 4, "remainder": "pad"},
    ):
        assert seeds_of(dataset, 2, lanes=lanes, **options) == [first, second]


@pytest.mark.parametrize(
    ("options", "num"),
    [
        ({"group_by": "group"}, 5),
        ({"sequence": stoker.NGram(length=2, keys="group")}, 5),
        ({"sequence": stoker.Pack("words", length=4)}, 5),
    ],
)
def test_units_have_one_seed_each(dataset, options, num):
    def augment(batch, rng):
        seen.append(rng.seeds)
        return batch

    seen: list[np.ndarray] = []
    with stoker.Loader(dataset, batch_size=5, augment=augment, prefetch=0, **options) as loader:
        next(iter(loader))
    assert len(seen[0]) == num


def test_seeds_are_the_same_from_version_to_version(dataset):
    with stoker.Loader(dataset, batch_size=3, seed=4, augment=with_seeds) as loader:
        assert next(iter(loader))["seed"].tolist() == SEEDS


SEEDS = [12675695744945767553, 12494662561790984348, 1251981834288674783]
