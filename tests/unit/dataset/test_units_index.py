"""The kept index: mapped when it is whole, counted again when it is not."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.dataset.units.count import Index, keep_index, kept_index


@pytest.fixture
def index():
    arrays = {"starts": np.arange(1000) * 7, "nothing": np.empty(0, np.int64)}
    return Index(row_starts=np.array([0, 5, 5, 9]), arrays=arrays, numbers={"num_cut": 3})


def test_what_was_kept_comes_back(tmp_path, index):
    keep_index(tmp_path / "units.stoker", index)
    found = kept_index(tmp_path / "units.stoker")
    assert found is not None
    assert found.row_starts.tolist() == [0, 5, 5, 9]
    assert found.numbers == {"num_cut": 3}
    np.testing.assert_array_equal(found.arrays["starts"], index.arrays["starts"])
    assert found.arrays["nothing"].shape == (0,)
    assert not found.arrays["starts"].flags.writeable


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_damaged_file_is_as_good_as_none_and_says_so(tmp_path, index, damage, caplog):
    path = tmp_path / "units.stoker"
    keep_index(path, index)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[-9] ^= 1
    else:
        content = bytearray(b"" if damage == "empty" else b"PAR1" * 100)
    path.write_bytes(content)
    assert kept_index(path) is None
    assert "counted again" in caplog.text


def test_what_was_never_kept_is_not_there(tmp_path):
    assert kept_index(tmp_path / "units.stoker") is None
