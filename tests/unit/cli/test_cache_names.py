"""Data sets of a cache are named by their source or the beginning of their fingerprint."""

import shutil
from collections import Counter
from itertools import combinations

import pytest
from tests.strategies import write_files
from tests.unit.cli.typed import answer_of, typed

from stoker import Dataset, Loader

COLUMNS = ("id", "half", "flag", "vector", "history", "word")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Data sets of folder a, so many that two fingerprints begin with the same digit, and one of folders b and c."""
    lake = tmp_path_factory.mktemp("lake")
    a, b, c = (write_files(lake / name, [4]) for name in "abc")
    columns = [*combinations(COLUMNS, 1), *combinations(COLUMNS, 2)]
    for dataset in (*(Dataset(a, columns=list(names)) for names in columns), Dataset([b, c])):
        with Loader(dataset, batch_size=8, cache=lake / "cache") as loader:
            assert sum(1 for _ in loader) == 1
    return lake


@pytest.fixture
def cache(lake, tmp_path):
    """A cache that a test may remove from."""
    return shutil.copytree(lake / "cache", tmp_path / "cache", symlinks=True)


@pytest.fixture
def known(cache):
    """Fingerprints of the data sets, by how many sources they have, in the order of the listing."""
    listed = answer_of("cache", "ls", cache)["datasets"]
    return {num: [one["fingerprint"] for one in listed if len(one["urls"]) == num] for num in (1, 2)}


def test_a_source_stands_for_all_data_sets_made_of_it(lake, cache, known):
    assert answer_of("cache", "rm", cache, f"{lake}/c/", "--yes")["removed"] == known[2]
    assert answer_of("cache", "rm", cache, f"{lake}/a", "--yes")["removed"] == known[1]


def test_the_beginning_of_a_fingerprint_stands_for_it_and_each_is_removed_once(lake, cache, known):
    names = [known[1][3][:12].upper(), f"{lake}/b", known[2][0], known[1][3]]
    removed = answer_of("cache", "rm", cache, *names, "--yes")["removed"]
    assert sorted(removed) == sorted([known[1][3], known[2][0]])


def test_a_name_that_stands_for_nothing_or_for_several_is_refused(lake, cache, known):
    digit, num = Counter(one[0] for one in known[1] + known[2]).most_common(1)[0]
    for name, words in (
        (digit, f"{num} fingerprints begin with '{digit}': "),
        (lake, f"no data set '{lake}'"),
        ("", "no data set ''"),
    ):
        code, out, err = typed("cache", "rm", cache, name, "--yes")
        assert (code, out) == (2, "")
        assert words in err
    assert len(answer_of("cache", "ls", cache)["datasets"]) == 22
