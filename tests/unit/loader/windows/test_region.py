"""Files side by side in one range of addresses."""

from pathlib import Path

import numpy as np
import pytest

from stoker.loader.windows.reading import FilePart
from stoker.loader.windows.region import PAGE_BYTES, Region


@pytest.mark.parametrize("is_mapped", [True, False])
def test_files_placed_side_by_side_read_as_one_array_even_when_removed(tmp_path, is_mapped):
    region = Region(6 * PAGE_BYTES, is_mapped=is_mapped)
    rng = np.random.default_rng(1)
    content = [rng.integers(0, 256, n * PAGE_BYTES + extra, dtype=np.uint8) for n, extra in [(2, 0), (2, 100)]]
    for i, data in enumerate(content):
        path = tmp_path / str(i)
        data.tofile(path)
        with path.open("rb") as file:
            region.place([FilePart(file.fileno(), PAGE_BYTES, len(data) - PAGE_BYTES, at=2 * i * PAGE_BYTES)])
        path.unlink()
    np.testing.assert_array_equal(region.bytes[:PAGE_BYTES], content[0][PAGE_BYTES:])
    np.testing.assert_array_equal(region.bytes[2 * PAGE_BYTES :][: PAGE_BYTES + 100], content[1][PAGE_BYTES:])
    region.close()
    region.close()
    assert region.bytes.nbytes == 0


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no way to ask whether memory can be read")
@pytest.mark.parametrize("num_pages", [1, 2, 512, 513])
@pytest.mark.parametrize("is_mapped", [True, False])
def test_behind_a_region_there_is_a_line_that_can_be_read(is_mapped, num_pages):
    """Loops that copy lists by whole lines read there, behind a list that ends with the region."""
    regions = [Region(num_pages * PAGE_BYTES, is_mapped=is_mapped) for _ in range(3)]
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for region in regions:
            memory.seek(region.bytes.ctypes.data + region.size_bytes)
            assert len(memory.read(64)) == 64
    for region in regions:
        region.close()


def test_a_misplaced_file_is_refused_before_it_overwrites_others(tmp_path):
    path = tmp_path / "chunk"
    path.write_bytes(bytes(4 * PAGE_BYTES))
    region = Region(2 * PAGE_BYTES)
    with path.open("rb") as file:
        for bad in [
            {"offset": 1, "num_bytes": 10, "at": 0},
            {"offset": 0, "num_bytes": 10, "at": 100},
            {"offset": 0, "num_bytes": 3 * PAGE_BYTES, "at": 0},
        ]:
            with pytest.raises(ValueError, match="cannot place"):
                region.place([FilePart(file.fileno(), **bad)])
    region.close()


@pytest.mark.parametrize("is_mapped", [True, False])
def test_settling_a_region_changes_nothing_and_can_be_ended(tmp_path, is_mapped):
    path = tmp_path / "chunk"
    content = np.arange(3 * PAGE_BYTES // 8)
    content.tofile(path)
    region = Region(3 * PAGE_BYTES, is_mapped=is_mapped)
    with path.open("rb") as file:
        region.place([FilePart(file.fileno(), 0, content.nbytes, at=0)])
    region.settle(goes_on=lambda: False)
    region.settle()
    assert region.is_in_memory()
    np.testing.assert_array_equal(region.bytes.view(np.int64), content)
    region.close()
