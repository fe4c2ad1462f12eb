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


@pytest.mark.parametrize("in_parts", [False, True])
def test_lists_of_more_rows_than_their_footer_promises_are_refused(tmp_path, in_parts):
    lies = []
    for column in ("lists", "lists by dictionary", "lists of strings"):  # of which pyarrow decodes the last
        for codec, version, at in (("none", "1.0", "[4-7]"), ("snappy", "2.0", "[0-3]")):
            lies += named(Sound(column, codec, version, False), rf"^chunk 0 page [02]: stored with 128 at {at}$")
    assert outcomes(lies, tmp_path, in_parts=in_parts)["refused"] > 20


def test_levels_and_places_in_a_dictionary_that_are_cut_short_are_refused(tmp_path):
    lies = []
    for column, codec in (("float32 with nulls", "snappy"), ("int64 by dictionary", "none")):
        sound = Sound(column, codec, "1.0", False)
        lies += named(sound, r"^chunk 1 page .: (stored|plain) without byte [0-4](, its size as it is)?$")
    assert outcomes(lies, tmp_path)["refused"] > 20


def test_a_page_whose_header_is_one_of_another_kind_is_read_as_pyarrow_reads_it(tmp_path):
    lies = []
    for column, version in (("int32 of null alone", "1.0"), ("strings", "2.0"), ("int64 by dictionary", "2.0")):
        lies += named(Sound(column, "snappy", version, False), r"^chunk 1 page [01]: header\.1 is [0-7]$")
    assert outcomes(lies, tmp_path)["refused"] > 10


def test_a_file_that_lies_in_one_place_is_refused_by_name_or_gives_what_pyarrow_reads(tmp_path):
    counts = outcomes(some(25, 9, seed=0), tmp_path)
    assert counts["refused"] > 150
    assert counts["delivered"] > 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_files_that_lie_are_refused_by_name_or_give_what_pyarrow_reads(tmp_path):
    outcomes(some(len(SOUND), 40, seed=1), tmp_path)
