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


def outcomes(chosen: Iterable[tuple[Sound, int]], folder: Path) -> Counter[str]:
    """Load files by number of the mutant; return how many were refused, delivered, or kept though pyarrow refuses."""
    tasks = [
        {"kind": "mutant", "sound": list(sound), "number": number, "folder": str(folder), "parts": number % 3 == 0}
        for sound, number in chosen
    ]
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


def test_a_page_of_which_other_bytes_come_than_it_promises_is_refused(tmp_path):
    lies = []
    for codec in CODECS:
        for column, version in (("int64", "1.0"), ("float32 with nulls", "2.0"), ("strings by dictionary", "1.0")):
            sound = Sound(column, codec, version, False)
            lies += named(sound, r"^chunk 0 page 0: (plain|stored) (short|long).* (not|before)$")[::3]
    assert outcomes(lies, tmp_path)["refused"] > 80


def test_lengths_that_lead_back_to_where_they_stand_end_nothing(tmp_path):
    sound = Sound("int64", "none", "1.0", False)
    lies = named(sound, r"^(chunk 0 page 1: header|footer\.4).* \d{20} \w+ more$")
    assert outcomes(lies[::7], tmp_path)["refused"] > 30


def test_a_file_that_lies_in_one_place_is_refused_by_name_or_gives_what_pyarrow_reads(tmp_path):
    counts = outcomes(some(25, 9, seed=0), tmp_path)
    assert counts["refused"] > 150
    assert counts["delivered"] > 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_files_that_lie_are_refused_by_name_or_give_what_pyarrow_reads(tmp_path):
    outcomes(some(len(SOUND), 40, seed=1), tmp_path)
