"""What a fork closes of its parent's."""

from __future__ import annotations

import os

from stoker.host.forks import close_here, closed_in_forks


def test_a_fork_closes_all_that_is_its_parents_alone_also_where_one_was_closed_by_somebody_else():
    opened = [closed_in_forks(os.open(os.devnull, os.O_RDONLY)) for _ in range(8)]
    os.close(opened[3])
    child = os.fork()
    if not child:
        left = 0
        for fd in opened:
            try:
                os.fstat(fd)
                left += 1
            except OSError:
                pass
        os._exit(left)
    _, status = os.waitpid(child, 0)
    os.dup2(opened[0], opened[3])
    for fd in opened:
        close_here(fd)
    assert os.waitstatus_to_exitcode(status) == 0
