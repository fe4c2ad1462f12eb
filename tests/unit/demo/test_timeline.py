from stoker.demo.accelerator import SimulatedAccelerator, waited_s


class Clock:
    def __init__(self):
        self.now = 0.0
        self.late_s = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds + self.late_s


def test_steps_follow_each_other_without_a_gap_when_the_loop_is_fast():
    clock = Clock()
    accelerator = SimulatedAccelerator(1.0, clock=clock, wait=clock.wait)
    for _ in range(3):
        accelerator.step({})
    assert accelerator.finish() == [(0, 1), (1, 2), (2, 3)]
    assert clock.now == 3


def test_a_wait_that_returns_late_does_not_delay_a_step_that_was_queued():
    clock = Clock()
    clock.late_s = 0.25
    accelerator = SimulatedAccelerator(1.0, clock=clock, wait=clock.wait)
    accelerator.step({})
    accelerator.step({})
    assert accelerator.finish() == [(0, 1), (1, 2)]


def test_a_step_begins_when_its_batch_comes_if_that_is_later():
    clock = Clock()
    accelerator = SimulatedAccelerator(1.0, clock=clock, wait=clock.wait)
    accelerator.step({})
    clock.now = 5.0
    accelerator.step({})
    assert accelerator.finish() == [(0, 1), (5, 6)]


def test_the_loop_may_fetch_while_a_step_runs():
    clock = Clock()
    accelerator = SimulatedAccelerator(1.0, clock=clock, wait=clock.wait)
    for _ in range(3):
        clock.now += 0.75
        accelerator.step({})
    assert accelerator.finish() == [(0.75, 1.75), (1.75, 2.75), (2.75, 3.75)]


def test_finish_forgets_the_steps_it_returned():
    clock = Clock()
    accelerator = SimulatedAccelerator(1.0, clock=clock, wait=clock.wait)
    accelerator.step({})
    assert len(accelerator.finish()) == 1
    assert accelerator.finish() == []


def test_only_fetching_while_no_step_runs_is_waiting():
    steps = [(2, 5), (7, 8)]
    assert waited_s([(0, 2), (2, 4)], steps, start=0) == 2
    assert waited_s([(0, 2), (2, 6)], steps, start=0) == 3
    assert waited_s([(0, 1), (6, 7)], steps, start=0) == 2
