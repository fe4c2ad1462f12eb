import threading

import pytest

from stoker.trace.stages import Stages, StageTotal, timed


def test_totals_add_up_over_threads():
    stages = Stages()
    threads = [threading.Thread(target=lambda: [stages("read", 0, 500, 3) for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stages("wait", 10, 30, 0)
    assert stages.totals() == {
        "read": StageTotal(num_calls=4000, busy_s=2e-3, num_bytes=12000),
        "wait": StageTotal(num_calls=1, busy_s=2e-8, num_bytes=0),
    }


def test_a_block_that_fails_is_counted_too():
    stages = Stages()
    with pytest.raises(KeyError), timed(stages, "decode", 7):
        raise KeyError
    assert stages.totals()["decode"].num_calls == 1
    assert stages.totals()["decode"].num_bytes == 7
