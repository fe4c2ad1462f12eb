"""Notes of verified files: what makes one wrong."""

import os

import pytest

from stoker.cache.folder import _SETTLED_NS, Files, Folder

KEY = "ab" * 16


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "chunk"
    path.write_bytes(b"content")
    # The time of change cannot be set, so the file is made old by looking at it from later on.
    return path


def _about(path, *, age_ns=2 * _SETTLED_NS):
    about = path.stat()
    values = {name: getattr(about, name) for name in ("st_ino", "st_size", "st_mtime_ns")}
    return type("About", (), {**values, "st_ctime_ns": about.st_ctime_ns - age_ns})()


@pytest.fixture
def folder(tmp_path):
    folder = Folder(tmp_path / "cache", Files())
    yield folder
    folder.close()


def test_a_mark_holds_for_the_file_as_it_was(folder, file):
    assert not folder.was_verified(KEY, _about(file))
    folder.note_verified(KEY, _about(file))
    assert folder.was_verified(KEY, _about(file))
    assert not folder.was_verified("cd" * 16, _about(file))


def _rewrite(file):
    file.write_bytes(b"CONTENT")


def _lengthen(file):
    with file.open("ab") as out:
        out.write(b"!")


def _replace(file):
    other = file.with_name("other")
    other.write_bytes(b"content")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)


def _set_back(file):
    before = file.stat()
    file.write_bytes(b"CONTENT")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("touch", [_rewrite, _lengthen, _replace, _set_back])
def test_whatever_touches_the_file_makes_its_mark_wrong(folder, file, touch):
    folder.note_verified(KEY, _about(file))
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # until the file system's clock has ticked
        touch(file)
    assert not folder.was_verified(KEY, _about(file))


def test_a_mark_of_another_boot_is_wrong(folder, file):
    folder.note_verified(KEY, _about(file))
    link = folder.path / "checked" / KEY
    _, rest = str(link.readlink()).split(" ", 1)
    link.unlink()
    link.symlink_to(f"another-boot {rest}")
    assert not folder.was_verified(KEY, _about(file))


def test_a_file_that_changed_a_moment_ago_is_not_marked(folder, file):
    about = file.stat()
    folder.note_verified(KEY, _about(file, age_ns=-_SETTLED_NS * 1000))
    assert not folder.was_verified(KEY, about)
    assert not folder.was_verified(KEY, _about(file, age_ns=-_SETTLED_NS * 1000))


def test_a_folder_that_cannot_be_written_to_marks_nothing(folder, file):
    (folder.path / "checked").rmdir()
    folder.note_verified(KEY, _about(file))
    assert not folder.was_verified(KEY, _about(file))


def test_no_name_stays_aside(folder, file):
    for _ in range(3):
        folder.note_verified(KEY, _about(file))
    assert [path.name for path in (folder.path / "checked").iterdir()] == [KEY]
