"""What a window's files are, looked at in one call."""

import os

import numpy as np
import pytest

from stoker._native import find_changed
from stoker.cache.folder import version_of


def versions_of(names):
    return np.array([version_of(os.stat(name)) for name in names], dtype=np.int64).reshape(-1, 3)  # noqa: PTH116


def changed_of(names, versions, files, *, patience_s=1.0):
    """Whether each of some files has changed; the names have room for a zero behind the longest."""
    texts = np.array(names, dtype=f"S{max(map(len, names), default=0) + 1}")
    changed = np.ones(len(files), dtype=np.bool_)
    find_changed(
        texts.view(np.uint8).reshape(len(texts), texts.itemsize), versions, files, changed, int(1e9 * patience_s)
    )
    return changed.tolist()


@pytest.mark.parametrize("patience_s", [1.0, 0.0])
def test_files_are_what_they_were_until_anything_about_them_changes(tmp_path, patience_s):
    paths = [tmp_path / name for name in ["a", "b" * 200, "ünïcode", "with space", "empty", "old"]]
    for i, path in enumerate(paths):
        path.write_bytes(b"x" * 1_000 * (i % 5))
        # Times before 1970 and with all nine digits are times, too.
        os.utime(path, ns=(0, [123_456_789_987_654_321, -1, -999_999_999, 0, 1 << 60, 7][i]))
    names = [os.fsencode(path) for path in paths]
    versions = versions_of(names)
    everything = np.arange(6)

    def changed(files=everything):
        return changed_of(names, versions, files, patience_s=patience_s)

    assert changed() == [False] * 6
    os.utime(paths[0], ns=(0, 123_456_789_987_654_322))
    with paths[1].open("ab") as file:
        file.write(b"more")
    os.utime(paths[1], ns=(0, -1))
    paths[2].unlink()
    aside = tmp_path / "aside"
    aside.write_bytes(b"x" * 3_000)
    os.utime(aside, ns=(0, 0))
    aside.replace(paths[3])
    versions[5] = -1
    assert changed() == [True, True, True, True, False, True]
    assert changed(np.array([4, 2, 4])) == [False, True, False]


def test_a_file_below_a_file_is_none(tmp_path):
    (tmp_path / "file").touch()
    names = [os.fsencode(tmp_path / "file" / "below")]
    assert changed_of(names, np.array([[1, 2, 3]]), np.array([0])) == [True]


def test_of_no_files_none_has_changed():
    none = np.empty(0, dtype=np.int64)
    assert changed_of([], none.reshape(0, 3), none) == []
