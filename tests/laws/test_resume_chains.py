"""Chains of five resumes, each on other ranks with another batch size: every lane's order is the uncut one, exactly.

Whatever the order counts, of one data set or of a mixture, filtered or not, shuffled or not, with the real loader.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.laws.test_units_loader import KINDS, is_possible, units_in
from tests.laws.units_data import datasets, write
from tests.oracles.order_page import page
from tests.strategies import examples

import stoker

NUM_EPOCHS = 2
kinds = st.sampled_from(["rows", *sorted(KINDS)])
cuts = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3)), min_size=5, max_size=5
)


class Lanes:
    """Units of each lane of each epoch, in the order in which they came."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.orders: dict[tuple[int, int], list] = {}
        self._num_taken: dict[int, int] = {}

    def take(self, epoch: int, units: list, *, global_batch_size: int) -> None:
        """Take a global batch: the lanes' equal parts side by side, smaller ones in an epoch's last batch."""
        num_lanes = len(self.sizes)
        taken = self._num_taken.get(epoch, 0)
        start = 0
        for lane, size in enumerate(self.sizes):
            part = min(global_batch_size // num_lanes, size - taken // num_lanes)
            self.orders.setdefault((epoch, lane), []).extend(units[start : start + part])
            start += part
        assert start == len(units)
        self._num_taken[epoch] = taken + start


def told(kind: str, batch) -> list[tuple]:
    """Return the units of a batch, each with its data set."""
    sources = batch.pop("source").tolist() if "source" in batch else None
    found = [(i,) for i in batch["id"].tolist()] if kind == "rows" else units_in(kind, batch)
    assert sources is None or len(sources) == len(found)
    return found if sources is None else list(zip(sources, found, strict=True))


def made(path: Path, kind: str, drawn, weights, until):
    """Return the data set, or the mixture of several."""
    parts = {}
    for number, one in enumerate(drawn):
        folder = path / f"data-{number}"
        parts[f"set {number}"] = write(folder, one)
        assume(kind != "weights" or is_possible(kind, folder))
    if len(parts) == 1:
        return parts["set 0"]
    shares = None if weights is None else dict(zip(parts, weights, strict=False))
    return stoker.Mixture(parts, weights=shares, until=until, source_field="source")


@examples(7)
@given(
    drawn=st.lists(datasets, min_size=1, max_size=3),
    weights=st.none() | st.lists(st.integers(1, 5), min_size=3, max_size=3),
    until=st.sampled_from(["first", "last"]),
    kind=kinds,
    shuffle=st.booleans(),
    lanes=st.integers(1, 4),
    window=st.sampled_from([1, 2, "all"]),
    uncut_size=st.integers(1, 40),
    cuts=cuts,
)
def test_five_resumes_on_other_ranks_and_batch_sizes_keep_every_lanes_order(
    drawn, weights, until, kind, shuffle, lanes, window, uncut_size, cuts
):
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        data = made(path, kind, drawn, weights, until)
        options = {
            "shuffle": shuffle, "seed": 5, "window": window, "lanes": lanes, "cache": path / "cache",
            **KINDS.get(kind, {}),
        }  # fmt: skip
        try:
            loader = stoker.Loader(data, batch_size=uncut_size * lanes, num_threads=1, **options)
        except ValueError as error:  # no mixture: nothing of a data set, or too little for all lanes
            assert any(  # noqa: PT017
                words in str(error) for words in ("has no samples", "would give no sample", "too few to share out")
            )
            assume(False)
        with loader:
            assume(len(loader))
            epochs = [[told(kind, batch) for batch in loader] for _ in range(NUM_EPOCHS)]
        num = sum(map(len, epochs[0]))
        is_mixed = isinstance(data, stoker.Mixture)
        sizes = tuple(page.dealt(num, lanes, lanes - 1) if is_mixed else page.equal_shares(num, lanes))
        uncut = Lanes(sizes)
        for epoch, batches in enumerate(epochs):
            for units in batches:
                uncut.take(epoch, units, global_batch_size=uncut_size * lanes)

        got, state = Lanes(sizes), None
        for num_steps, part, world_size, prefetch in [*cuts, (10**9, 50, 1, 2)]:
            ranks, states = [], set()
            for rank in range(world_size):
                with stoker.Loader(
                    data, global_batch_size=part * lanes, rank=rank, world_size=world_size, num_threads=1 + rank % 2,
                    prefetch=prefetch, **options,
                ) as loader:  # fmt: skip
                    if state is not None:
                        loader.load_state_dict(json.loads(state))
                        assert loader.state_dict() == json.loads(state)
                    mine = []
                    while loader.epoch < NUM_EPOCHS and len(mine) < num_steps:
                        epoch = loader.epoch
                        for batch in loader:
                            mine.append((epoch, told(kind, batch)))
                            if len(mine) == num_steps:
                                break
                    ranks.append(mine)
                    states.add(json.dumps(loader.state_dict()))
            assert len(states) == 1
            state = states.pop()
            assert len(state) < 2000
            for step in zip(*ranks, strict=True):
                assert len({epoch for epoch, _ in step}) == 1
                units = [unit for _, part_of_rank in step for unit in part_of_rank]
                got.take(step[0][0], units, global_batch_size=part * lanes)
            if json.loads(state)["epoch"] >= NUM_EPOCHS:
                break
        assert got.orders == uncut.orders
