"""Saved states: what of them is checked, and where a loader goes on."""

from __future__ import annotations

import pytest

from stoker import Dataset, Loader, ResumeError
from stoker.testing import MemoryStorage, write_parquet

NUM_ROWS = 22


def loader_of(**options):
    storage = MemoryStorage()
    write_parquet(storage, {"id": range(NUM_ROWS)}, url="a.parquet")
    return Loader(
        Dataset("a.parquet", storage=storage), **{"batch_size": 8, "shuffle": True, "seed": 7, "window": 8} | options
    )


@pytest.fixture
def loader():
    with loader_of() as made:
        yield made


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 8}, "the seed was 8 and is 7"),
        ({"shuffle": False}, "shuffle was False and is True"),
        ({"window": None}, "the window was None and is 8"),
        ({"lanes": 2}, "the number of lanes was 2 and is 1"),
        ({"units": "groups of q"}, "what is counted was 'groups of q' and is 'rows'"),
        ({"order_version": "v0"}, "the order version was 'v0' and is 'v1'"),
    ],
)
def test_another_order_is_told_by_what_differs(loader, changed, words):
    with pytest.raises(ResumeError, match=words) as caught:
        loader.load_state_dict(loader.state_dict() | changed)
    (name,) = changed
    assert name in caught.value.saved
    assert name in caught.value.current


def test_without_shuffling_another_window_is_the_same_order():
    with loader_of(shuffle=False) as plain:
        plain.load_state_dict(plain.state_dict() | {"window": 99, "num_consumed": 8})
        assert next(iter(plain))["id"].tolist() == list(range(8, 16))


@pytest.mark.parametrize(("remainder", "sizes", "next_epoch"), [("drop", [8, 8], 2), ("keep", [4], 1), ("pad", [8], 1)])
def test_a_grown_batch_that_nothing_fills_any_more_goes_on_with_the_next_epoch(remainder, sizes, next_epoch):
    with loader_of(remainder=remainder) as grown:
        grown.load_state_dict(grown.state_dict() | {"num_consumed": 18})
        assert [len(batch["id"]) for batch in grown] == sizes
        state = grown.state_dict()
        assert (state["epoch"], state["num_consumed"]) == (next_epoch, 0)


def test_an_epoch_too_small_for_a_batch_is_an_epoch_without_steps():
    with loader_of(batch_size=NUM_ROWS + 1, remainder="drop") as small:
        small.load_state_dict(small.state_dict())
        assert small.epoch == len(small) == 0


@pytest.mark.parametrize(("consumed", "lanes"), [(NUM_ROWS + 1, 1), (3, 2)])
def test_a_place_at_which_no_step_begins_is_refused(consumed, lanes):
    with loader_of(lanes=lanes) as made, pytest.raises(ResumeError, match=f"no step begins behind {consumed} samples"):
        made.load_state_dict(made.state_dict() | {"num_consumed": consumed})


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (None, "the dict that state_dict\\(\\) returned, not NoneType"),
        ('{"epoch": 1}', "not str; it is JSON text: json.loads makes it one"),
        ({}, "it has no 'format_version', but nothing at all"),
        ({"epoch": 3, "model": 1}, "it has no 'format_version', but epoch, model"),
        ({"format_version": 99}, "has format 99, and this Stoker reads format 2: load it with"),
    ],
)
def test_what_is_no_saved_position_is_said_to_be_none(loader, saved, words):
    with pytest.raises(ResumeError, match=words):
        loader.load_state_dict(saved)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": ...}, "not sound: seed is missing"),
        ({"sede": 1}, "not sound: sede is not known"),
        ({3: 1, "sede": 1}, "not sound: 3 is not known, sede is not known"),
        ({"num_consumed": "8"}, "not sound: num_consumed is '8'"),
        ({"num_consumed": -1}, "not sound: num_consumed must be 0 at least"),
        ({"epoch": True}, "not sound: epoch is True"),
        ({"epoch": 1.5}, "not sound: epoch is 1.5"),
        ({"shuffle": 1}, "not sound: shuffle is 1"),
        ({"datasets": [{}]}, "not sound: datasets\\[0\\].draws is missing"),
        ({"datasets": []}, "not sound: it tells of 0 data sets"),
        ({"datasets": {"files": "?"}}, "not sound: this is no base64"),
        ({"datasets": {"num_files": "1"}}, "not sound: datasets\\[0\\].num_files is '1'"),
        ({"datasets": {"num_files": 0, "num_samples": 1}}, "not sound: num_files, files and"),
        (
            {"datasets": {"num_files": 10**15, "files": None, "segments": ""}},
            "not sound: num_files",
        ),
        ({"datasets": {"num_files": -1, "files": None}}, "not sound: num_files, files and"),
        ({"datasets": {"segment_sizes": [1]}}, "not sound: num_files, files and"),
        (  # files of the segments 0 and 2, and none of segment 1
            {
                "datasets": {
                    "num_files": 2,
                    "num_samples": 3,
                    "files": "A" * 22 + "==",
                    "segments": "AAI=",
                    "segment_sizes": [1, 1, 1],
                }
            },
            "not sound: num_files, files and segments",
        ),
        ({"window": 0}, "not sound: window must be 1 at least"),
        ({"lanes": 10**30}, "not sound: lanes must be 1 at least, and need no more than 63 bits"),
        ({"epoch": 1 << 63}, "not sound: epoch must be 0 at least, and need no more than 63 bits"),
        ({"mixture": {"names": ["a"]}}, "not sound: mixture.until is missing"),
        ({"mixture": {"names": [1], "weights": None, "until": None}}, r"not sound: mixture.names\[0\] is 1"),
        ({"mixture": {"names": ["a"], "weights": ["1", "2"], "until": "first"}}, "not sound: it tells of 1 data sets"),
        (
            {"mixture": {"names": ["a", "a"], "weights": None, "until": None}},
            "not sound: mixture.names has a name twice: a, a",
        ),
        ({"mixture": {"names": ["a"], "weights": ["1e999999999"], "until": "first"}}, "not sound: mixture.weights is"),
        ({"mixture": {"names": ["a", "b"], "weights": None, "until": None}}, "not sound: it tells of 1 data sets"),
        ({"mixture": {"names": ["a"], "weights": None, "until": "none"}}, "not sound: mixture.until is 'none'"),
        (
            {"leg": {"epoch": 0, "start": 0, "given": [], "streams": []}},
            "not sound: it tells of 1 data sets, and in parts of others",
        ),
        ({"leg": {"epoch": 0, "start": 0, "given": [1], "streams": [[1]]}}, r"not sound: leg.streams\[0\] is \[1\]"),
        ({"leg": {"epoch": -1, "start": 0, "given": [1], "streams": [[1, 1]]}}, "not sound: leg has a negative"),
    ],
)
def test_an_unsound_position_is_told_by_what_is_wrong_with_it(loader, change, words):
    state = loader.state_dict()
    if isinstance(of_files := change.get("datasets"), dict):
        change = {"datasets": [state["datasets"][0] | of_files]}
    with pytest.raises(ResumeError, match=words):
        loader.load_state_dict({name: value for name, value in (state | change).items() if value is not ...})
