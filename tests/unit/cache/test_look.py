"""What a window's files are, looked at in one compiled call or one by one."""

import os

import numpy as np
import pytest

from stoker.cache.look import NO_VERSION, versions_of


@pytest.mark.parametrize("compiled", [True, False])
def test_versions_are_those_that_stat_tells(tmp_path, compiled):
    names = []
    for i, name in enumerate(["a", "b" * 200, "ünïcode", "with space", "empty"]):
        path = tmp_path / name
        path.write_bytes(b"x" * 1_000 * i)
        # Times before 1970 and with all nine digits are times, too.
        os.utime(path, ns=(0, [123_456_789_987_654_321, -1, -999_999_999, 0, 1 << 60][i]))
        names.append(os.fsencode(path))
    names.insert(2, os.fsencode(tmp_path / "missing"))
    names.append(os.fsencode(tmp_path / "a" / "below a file"))
    found = versions_of(names, compiled=compiled)
    for name, version in zip(names, found.tolist(), strict=True):
        try:
            about = os.stat(name)  # noqa: PTH116  (what is asked of)
        except OSError:
            assert tuple(version) == NO_VERSION
        else:
            assert version == [about.st_ino, about.st_mtime_ns, about.st_size]


@pytest.mark.parametrize("compiled", [True, False])
def test_no_files_have_no_versions(compiled):
    assert versions_of([], compiled=compiled).shape == (0, 3)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_file_that_is_written_again_is_another_one(tmp_path, compiled):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    before = versions_of([os.fsencode(path)], compiled=compiled)
    aside = tmp_path / "aside"
    aside.write_bytes(b"behind")
    aside.replace(path)
    after = versions_of([os.fsencode(path)], compiled=compiled)
    assert before[0, 0] != after[0, 0]
    np.testing.assert_array_equal(before[:, 2], after[:, 2])
