"""Which windows are brought back into the page cache, in made-up epochs of made-up pressure."""

import numpy as np
import pytest

from stoker.loader.window import PageCacheTrial

NUM_CHUNKS, WINDOW = 60, 6


class PageCache:
    """A data set whose chunks stay in the page cache, or do not; and what a trial brings back into it."""

    def __init__(self, *, stays, seed=0):
        self.trial = PageCacheTrial()
        self.stays = stays
        self.there = set()
        self.rng = np.random.default_rng(seed)

    def epoch(self, *, rank=0, num_ranks=1):
        """Return how many windows were brought back, and in how many something was gone."""
        order = self.rng.permutation(NUM_CHUNKS)[rank::num_ranks].tolist()
        num_back = num_gone = 0
        for begin in range(0, len(order), WINDOW):
            chunks = order[begin : begin + WINDOW]
            gone = [chunk for chunk in chunks if chunk not in self.there]
            num_gone += bool(gone)
            if self.trial.brings_back(chunks, gone, may=bool(gone)):
                num_back += 1
                self.there.update(gone)
        if not self.stays:
            self.there.clear()
        return num_back, num_gone


@pytest.mark.parametrize("seed", range(5))
def test_while_nothing_stays_one_window_is_tried_in_ever_fewer_epochs(seed):
    cache = PageCache(stays=False, seed=seed)
    num_back = [cache.epoch()[0] for _ in range(17)]
    assert num_back == [int(number in (1, 2, 4, 8, 16)) for number in range(1, 18)]


@pytest.mark.parametrize("seed", range(5))
def test_where_it_stays_all_of_it_is_brought_back_in_the_epochs_after_the_trial(seed):
    cache = PageCache(stays=True, seed=seed)
    assert cache.epoch()[0] == 1
    cache.epoch()
    cache.epoch()
    assert cache.epoch() == (0, 0)


def test_what_a_job_pushed_out_comes_back_when_it_has_ended():
    cache = PageCache(stays=False)
    for _ in range(5):
        cache.epoch()
    cache.stays = True
    num_gone = [cache.epoch()[1] for _ in range(8)]
    assert num_gone[-1] == 0


def test_what_is_lost_again_ends_it_within_the_window_that_shows_it():
    cache = PageCache(stays=True)
    for _ in range(5):
        cache.epoch()
    cache.there.clear()
    assert cache.epoch()[0] <= 1  # a trial may have been due
    for _ in range(8):
        cache.epoch()
    assert cache.epoch() == (0, 0)


def test_one_of_several_ranks_finds_out_though_it_meets_few_of_its_chunks_again():
    cache = PageCache(stays=True)
    for _ in range(20):
        cache.epoch(rank=1, num_ranks=4)
    assert cache.epoch(rank=1, num_ranks=4) == (0, 0)
