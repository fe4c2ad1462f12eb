"""Data sets of a cache are named by their source or the beginning of their fingerprint."""

import pytest

from stoker.cache.admin import choose
from stoker.cache.disk import DatasetEntry


def entry(fingerprint, *urls):
    return DatasetEntry(fingerprint=fingerprint, urls=urls, keys=("k",))


ENTRIES = [
    entry("aa11", "lake/a/"),
    entry("aa22", "lake/a"),
    entry("bb33", "lake/b", "lake/c"),
    DatasetEntry(),
]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["lake/a"], ["aa11", "aa22"]),
        (["lake/a/"], ["aa11", "aa22"]),
        (["aa2"], ["aa22"]),
        (["BB"], ["bb33"]),
        (["lake/c", "aa1", "bb33"], ["aa11", "bb33"]),
        ([], []),
    ],
)
def test_names_stand_for_data_sets(names, chosen):
    assert [found.fingerprint for found in choose(ENTRIES, names)] == chosen


@pytest.mark.parametrize(
    ("name", "words"),
    [("aa", "2 fingerprints begin with 'aa': aa11, aa22"), ("lake", "no data set 'lake'"), ("", "no data set ''")],
)
def test_a_name_that_stands_for_nothing_or_for_several_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        choose(ENTRIES, [name])
