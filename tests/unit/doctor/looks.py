"""Looks at a machine that is used for something else as well."""

import contextlib
import functools


def looked_at_again(test):
    """Try a test up to three times, each in a folder of its own: one look may find what else the machine does."""

    @functools.wraps(test)
    def look(tmp_path, *arguments, **named):
        folders = [tmp_path / str(i) for i in range(3)]
        for folder in folders:
            folder.mkdir()
            with contextlib.suppress(AssertionError) if folder != folders[-1] else contextlib.nullcontext():
                test(folder, *arguments, **named)
                break

    return look
