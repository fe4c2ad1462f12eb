"""Samples gathered straight to their places in a batch: the same batch as put in order afterwards."""

from __future__ import annotations

import numpy as np
from tests.strategies import check_samples
from tests.unit.loader.gather.test_assemble import NESTED, window_of

from stoker.loader.buffers import BufferPool
from stoker.loader.gather import Part, assemble


def test_a_batch_whose_samples_have_places_is_the_one_without_put_in_order(tmp_path):
    rng = np.random.default_rng(1)
    first, parts = 0, []
    for i, sizes in enumerate([[10, 3], [40], [1, 1, 7]]):
        (tmp_path / str(i)).mkdir()
        window = window_of(tmp_path / str(i), sizes, first=first)
        first += sum(sizes)
        slot = rng.integers(0, len(sizes), 20)
        row = np.array([rng.integers(0, sizes[s]) for s in slot])
        parts.append(Part.at(window, slot, row))
    spec, places = parts[0].window.layout.spec, rng.permutation(60)
    plain = assemble(spec, parts, BufferPool()).views()
    placed = assemble(spec, parts, BufferPool(), places=places).views()
    np.testing.assert_array_equal(placed["id"][places], plain["id"])
    check_samples(placed)
    order = np.argsort(places)
    assert np.diff(placed[NESTED].offsets).tolist() == np.diff(plain[NESTED].offsets)[order].tolist()
    nothing = assemble(spec, [], BufferPool(), places=np.empty(0, dtype=np.int64))
    assert nothing.views()["history"].offsets.tolist() == [0]
    for part in parts:
        part.window.close()
