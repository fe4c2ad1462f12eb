"""Which units a row stands in is found without listing all rows of all units."""

import numpy as np

from stoker.dataset.units.count import Index
from stoker.sampling.units import Units


def test_a_row_of_long_windows_is_found_without_the_rows_of_all_of_them():
    num, length = 1000, 10**11
    arrays = {"unit_starts": np.array([0, num]), "starts": np.arange(num)}
    units = Units(Index(row_starts=np.array([0, num + length]), arrays=arrays), length)
    assert units.units_of(0, 2).tolist() == [0, 1, 2]
    assert units.units_of(0, length + 997).tolist() == [998, 999]
