"""Files that lie in one length, count, offset or size: the right error, or the values that pyarrow reads."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.integration.mutants.files import CODECS, Sound, columns
from tests.integration.mutants.ways import mutants
from tests.integration.real_files.child import run_tasks

SOUND = [Sound(*of) for of in itertools.product(columns(), CODECS, ["1.0", "2.0"], [False, True])]


def outcomes(chosen: Iterable[tuple[Sound, int]], folder: Path, *, in_parts: bool | None = None) -> Counter[str]:
    """Load files by number of the mutant; return how many were refused, delivered, or kept though pyarrow refuses.

    Args:
        chosen: The files.
        folder: Where they are written to.
        in_parts: Whether row groups are read by parts; None for every third one.
    """
    tasks = [
        {
            "kind": "mutant",
            "sound": list(sound),
            "number": number,
            "folder": str(folder),
            "parts": number % 3 == 0 if in_parts is None else in_parts,
        }
        for sound, number in chosen
    ]
    return _counted(tasks)


def _counted(tasks: list[dict[str, object]]) -> Counter[str]:
    answers = run_tasks(tasks)
    wrong = [
        f"{task}: {answer}"
        for task, answer in zip(tasks, answers, strict=True)
        if answer["kind"] not in ("refused", "delivered", "kept")
        # pyarrow makes room for a page of 2 GiB before it says that there is none.
        and not (answer["kind"] == "huge" and "'kind': 'refused'" in answer["text"])
    ]
    assert not wrong, "\n\n".join([f"{len(wrong)} of {len(tasks)}", *wrong[:20]])
    return Counter(answer["kind"] for answer in answers)


def some(num_files: int, each: int, *, seed: int) -> Iterable[tuple[Sound, int]]:
    """Choose by chance, the same at every run."""
    chance = random.Random(seed)
    for sound in chance.sample(SOUND, num_files):
        for number in sorted(chance.sample(range(len(mutants(sound))), each)):
            yield sound, number


def named(sound: Sound, pattern: str) -> list[tuple[Sound, int]]:
    """Choose the mutants of a file whose names match."""
    return [(sound, i) for i, mutant in enumerate(mutants(sound)) if re.search(pattern, mutant.name)]


NEVER_DELIVERED = {
    "a page of which other bytes come than it promises": [
        (Sound(column, codec, version, False), r"^chunk 0 page 0: (plain|stored) (short|long).* (not|before)$", 8)
        for codec, (column, version) in zip(
            CODECS, itertools.cycle([("int64", "1.0"), ("float32 with nulls", "2.0"), ("strings by dictionary", "1.0")])
        )
    ],
    "lengths that lead back to where they stand": [
        (Sound("int64", "none", "1.0", False), r"^(chunk 0 page 1: header|footer\.4).* \d{20} \w+ more$", 15)
    ],
    "lists of more rows than their footer promises": [  # pyarrow decodes lists of strings
        (Sound(column, "none", "1.0", False), r"^chunk 0 page [02]: stored with 128 at [4-7]$", 1)
        for column in ("lists", "lists by dictionary", "lists of strings")
    ],
    "levels and places in a dictionary that are cut short": [
        (Sound(column, codec, "1.0", False), r"^chunk 1 page .: (stored|plain) without byte [0-4]$", 1)
        for column, codec in (("float32 with nulls", "snappy"), ("int64 by dictionary", "none"))
    ],
    "a page whose header is one of another kind": [
        (Sound("int64 by dictionary", "snappy", "2.0", False), r"^chunk 1 page [01]: header\.1 is [0-7]$", 1)
    ],
}


@pytest.mark.parametrize(
    ("in_parts", "every"),
    [(True, 9), pytest.param(True, 1, marks=pytest.mark.slow), pytest.param(False, 1, marks=pytest.mark.slow)],
)
def test_what_others_came_upon_is_refused_or_read_as_pyarrow_reads_it(tmp_path, in_parts, every):
    kinds = {name: [one for *of, step in lies for one in named(*of)[::step]] for name, lies in NEVER_DELIVERED.items()}
    for name, lies in kinds.items():
        assert len(lies) > 6, name
    counts = outcomes([one for lies in kinds.values() for one in lies[::every]], tmp_path, in_parts=in_parts)
    assert counts["refused"] > 0.8 * counts.total()


def test_a_file_that_lies_in_one_place_is_refused_by_name_or_gives_what_pyarrow_reads(tmp_path):
    counts = outcomes(some(4, 5, seed=0), tmp_path)
    assert counts["refused"] > 12
    assert counts["delivered"] > 1


@pytest.mark.parametrize("num_files", [30, pytest.param(6_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_file_with_bytes_that_are_others_is_refused_by_name_or_gives_what_pyarrow_reads(tmp_path, num_files):
    chance = random.Random(num_files)
    tasks = [
        {
            "kind": "mutant",
            "sound": list(chance.choice(SOUND)),
            "seed": seed,
            "folder": str(tmp_path),
            "parts": seed % 3 == 0,
        }
        for seed in range(num_files)
    ]
    counts = _counted(tasks)
    assert counts["refused"] > num_files // 3
    assert counts["delivered"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_files_that_lie_are_refused_by_name_or_give_what_pyarrow_reads(tmp_path):
    outcomes(some(len(SOUND), 40, seed=1), tmp_path)
