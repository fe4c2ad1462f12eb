"""Positions: saved, read, checked, moved."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.strategies import NOTHING

from stoker import ResumeError
from stoker.sampling import Position, Steps
from stoker.sampling.position import to_json

POSITION = Position(datasets=(NOTHING,), seed=7, shuffle=True, window=8, lanes=2, epoch=3, num_consumed=40)


def test_a_position_survives_json():
    assert Position.from_json(json.loads(json.dumps(POSITION.to_json()))) == POSITION


def test_epoch_and_progress_are_no_part_of_what_is_checked():
    assert not POSITION.differences(replace(POSITION, epoch=0, num_consumed=0))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 8}, "the seed was 7 and is 8"),
        ({"shuffle": False}, "shuffle was True and is False"),
        ({"window": None}, "the window was 8 and is None"),
        ({"lanes": 1}, "the number of lanes was 2 and is 1"),
        ({"units": "groups of q"}, "what is counted was 'rows' and is 'groups of q'"),
        ({"order_version": "v2"}, "the order version was 'v1' and is 'v2'"),
    ],
)
def test_another_order_is_told_by_what_differs(changed, words):
    (name,) = changed
    assert POSITION.differences(replace(POSITION, **changed)) == {name: words}


def test_without_shuffling_another_window_is_the_same_order():
    assert not replace(POSITION, shuffle=False).differences(replace(POSITION, shuffle=False, window=99))


def test_a_step_moves_on_and_the_last_one_begins_the_next_epoch():
    position = Position(datasets=(NOTHING,), seed=7, shuffle=True, window=None)
    for remainder in ("keep", "pad", "drop"):
        steps = Steps(lane_sizes=(11, 11), global_batch_size=8, remainder=remainder)
        assert position.after(0, steps).num_consumed == 8
        end = position.after(steps.num_steps - 1, steps)
        assert (end.epoch, end.num_consumed) == (1, 0)


def test_a_step_that_was_handed_over_before_is_refused():
    steps = Steps(lane_sizes=(22, 22), global_batch_size=8)
    with pytest.raises(ValueError, match="fewer than 40"):
        POSITION.after(0, steps)


def test_a_grown_batch_that_nothing_fills_any_more_goes_on_with_the_next_epoch():
    saved = Position(datasets=(NOTHING,), seed=7, shuffle=True, window=None, num_consumed=18)
    none_left = Steps(lane_sizes=(22,), global_batch_size=8, remainder="drop", start=18)
    assert saved.settled(none_left) == replace(saved, epoch=1, num_consumed=0)
    assert saved.settled(Steps(lane_sizes=(22,), global_batch_size=8, start=18)) == saved


def test_an_epoch_too_small_for_a_batch_is_an_epoch_without_steps():
    fresh = Position(datasets=(NOTHING,), seed=7, shuffle=True, window=None)
    assert fresh.settled(Steps(lane_sizes=(3,), global_batch_size=8, remainder="drop")) == fresh


def test_a_negative_epoch_is_a_value_error():
    with pytest.raises(ValueError, match="epoch"):
        replace(POSITION, epoch=-1)


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
def test_what_is_no_saved_position_is_said_to_be_none(saved, words):
    with pytest.raises(ResumeError, match=words):
        Position.from_json(saved)


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
        ({"datasets": [to_json(NOTHING) | {"files": "?"}]}, "not sound: this is no base64"),
        ({"datasets": [to_json(NOTHING) | {"num_files": "1"}]}, "not sound: datasets\\[0\\].num_files is '1'"),
        ({"datasets": [to_json(NOTHING) | {"num_files": 0, "num_samples": 1}]}, "not sound: num_files, files and"),
        (
            {"datasets": [to_json(NOTHING) | {"num_files": 10**15, "files": None, "segments": ""}]},
            "not sound: num_files",
        ),
        ({"datasets": [to_json(NOTHING) | {"num_files": -1, "files": None}]}, "not sound: num_files, files and"),
        ({"datasets": [to_json(NOTHING) | {"segment_sizes": [1]}]}, "not sound: num_files, files and"),
        (  # files of the segments 0 and 2, and none of segment 1
            {
                "datasets": [
                    to_json(NOTHING)
                    | {"num_files": 2, "num_samples": 3, "files": "A" * 22 + "==", "segments": "AAI="}
                    | {"segment_sizes": [1, 1, 1]}
                ]
            },
            "not sound: num_files, files and segments",
        ),
        ({"window": 0}, "not sound: window must be 1 at least"),
        ({"lanes": 10**30}, "not sound: lanes must be 1 at least, and need no more than 63 bits"),
        ({"epoch": 1 << 63}, "not sound: epoch must be 0 at least, and need no more than 63 bits"),
        ({"mixture": {"names": ["a"]}}, "not sound: mixture.until is missing"),
        ({"mixture": {"names": [1], "weights": None, "until": None}}, r"not sound: mixture.names\[0\] is 1"),
        ({"mixture": {"names": ["a"], "weights": ["1", "2"], "until": "first"}}, "not sound: it tells of 1 data sets"),
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
def test_an_unsound_position_is_told_by_what_is_wrong_with_it(change, words):
    whole = Position(datasets=(NOTHING,), seed=1, shuffle=True, window=None).to_json() | change
    with pytest.raises(ResumeError, match=words):
        Position.from_json({name: value for name, value in whole.items() if value is not ...})
