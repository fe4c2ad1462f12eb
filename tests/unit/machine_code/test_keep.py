"""Machine code is kept once a machine, and used for as long as it is what its sources say."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import stoker
from stoker import loops
from stoker.machine_code import load, place, where_kept
from stoker.machine_code.image import Image
from stoker.machine_code.processors import aim

pytestmark = pytest.mark.skipif(aim() is None, reason="no machine code can be kept here")

PROCESSOR = "some processor"
IMAGE = Image(b"code\nand more", [1, 2], {"memcpy": [3]}, {"stoker.objects": 0})
ROOT = Path(stoker.__file__).parents[1]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A package of its own, so that its sources can be changed."""
    package = tmp_path / "stoker"
    package.mkdir()
    for name, text in {
        "loops_of.py": "from stoker.inner import numbers\nfrom stoker import other\nimport numpy, stoker.named\n",
        "inner/__init__.py": "from stoker.nobody import nothing",
        "inner/numbers.py": "A = 1",
        "other.py": "from stoker.loops_of import something",
        "named.py": "",
        "unused.py": "",
    }.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr(place, "_ROOT", tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path


def _read(processor=PROCESSOR):
    kept = place.read(processor)
    return None if kept is None else kept[0]


def test_what_is_kept_is_read_as_it_was(root):
    path = place.write(PROCESSOR, IMAGE, ["stoker.loops_of"])
    assert path.parent == root / "stoker" / "machine_code" / "images"
    assert _read() == IMAGE
    assert place.read(PROCESSOR)[1] == path
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_another_processor_has_none_and_keeps_its_own(root):
    place.write(PROCESSOR, IMAGE, ["stoker.loops_of"])
    assert _read("another") is None
    place.write("another", IMAGE, ["stoker.loops_of"])
    assert _read() == _read("another") == IMAGE


@pytest.mark.parametrize("name", ["loops_of.py", "inner/numbers.py", "other.py", "named.py"])
def test_a_source_that_was_changed_or_is_gone_ends_its_use(root, name):
    place.write(PROCESSOR, IMAGE, ["stoker.loops_of"])
    source = root / "stoker" / name
    text = source.read_text()
    source.write_text(text + "\n")
    assert _read() is None
    source.unlink()
    assert _read() is None
    source.write_text(text)
    assert _read() == IMAGE
    (root / "stoker" / "unused.py").write_text("B = 2")
    assert _read() == IMAGE


def test_a_file_that_is_cut_short_or_damaged_anywhere_is_not_used(root):
    path = place.write(PROCESSOR, IMAGE, ["stoker.loops_of"])
    whole = path.read_bytes()
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            assert _read() is None
    path.write_bytes(whole)
    assert _read() == IMAGE


def test_code_that_lacks_a_module_is_not_used(root):
    """Another version of the package kept it, which had fewer loops, and those the same."""
    image = replace(IMAGE, symbols={"stoker.objects": 0, "stoker.a.one": 0, "stoker.b.c.two": 0})
    path = place.write(aim(), image, ["stoker.loops_of"])
    assert where_kept(["stoker.a", "stoker.b.c"]) == path
    assert where_kept(["stoker.a", "stoker.b.c", "stoker.b"]) is None
    assert load(["stoker.a", "stoker.d"]) is None


def test_where_the_package_cannot_be_written_to_the_users_folder_is_taken(root):
    (root / "stoker" / "machine_code").write_text("no folder")
    path = place.write(PROCESSOR, IMAGE, ["stoker.loops_of"])
    assert path.parent == root / "home" / "stoker"
    assert _read() == IMAGE


def test_where_nothing_can_be_written_nothing_is_kept(root, monkeypatch):
    for name in ("stoker/machine_code", "home"):
        (root / name).write_text("no folder")
    assert place.write(PROCESSOR, IMAGE, ["stoker.loops_of"]) is None
    assert _read() is None


def test_numbas_folder_is_asked_first(root, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(root / "numba"))
    assert place.write(PROCESSOR, IMAGE, ["stoker.loops_of"]).parent == root / "numba" / "stoker"
    assert _read() == IMAGE


@pytest.mark.parametrize(
    ("name", "is_used"), [("NUMBA_CACHE_DIR", True), ("NUMBA_DISABLE_JIT", False), ("NUMBA_BOUNDSCHECK", False)]
)
def test_who_tells_numba_to_make_other_code_gets_numbas(name, is_used):
    code = "from stoker.machine_code.processors import aim; print(aim() is not None)"
    assert _run(code, {name: "1"}) == [str(is_used)]


def test_all_that_python_calls_is_kept():
    called = {
        found
        for path in (ROOT / "stoker").rglob("*.py")
        for found in re.findall(r"\b(?:_?kernels|stretching)\.([a-z]\w*)\b", path.read_text())
    }
    called -= {"py"}  # names of files, in comments
    kept = {name for module in loops.NAMES for name in vars(loops.find(module))}
    assert len(called) > 30
    assert called <= kept


def _run(code, environment=None):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | (environment or {}), timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


FIRST = """
import sys
from pathlib import Path
from stoker import loops
from stoker.machine_code import load, place, where_kept
place._paths = lambda processor: [Path(sys.argv[1] if len(sys.argv) > 1 else {path!r})]
loops.load()
print(loops.is_loading())
loops.wait()
print("numba" in sys.modules, "llvmlite" in sys.modules)
"""


def test_the_first_process_keeps_what_it_compiled_and_the_next_does_without_the_compiler(tmp_path):
    code = FIRST.format(path=str(tmp_path / "kept"))
    assert _run(code) == ["True", "True", "True"]
    assert (tmp_path / "kept").stat().st_size > 100_000
    assert _run(code) == ["False", "False", "False"]


LOADER = """
import sys
import numpy as np
from stoker import Dataset, Loader
digests = []
with Loader(Dataset(sys.argv[-1]), batch_size=64, shuffle=True, seed=3, num_threads=2) as loader:
    for epoch in range(2):
        for batch in loader:
            parts = batch["x"], batch["list"].values, batch["list"].offsets
            digests.append(hash(tuple(part.tobytes() for part in parts)))
print(hash(tuple(digests)), "numba" in sys.modules, "llvmlite" in sys.modules)
"""


@pytest.fixture
def parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = [list(range(number % 7)) for number in range(1000)]
    pq.write_table(pa.table({"x": pa.array(range(1000)), "list": lists}), tmp_path / "data.parquet")
    return tmp_path / "data.parquet"


def test_a_loader_needs_no_compiler_and_its_batches_are_those_of_plain_numpy(parquet):
    def found(**environment):
        done = subprocess.run(
            [sys.executable, "-c", LOADER, str(parquet)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": "0"} | environment,
            check=True,
        )
        return done.stdout.split()

    kept, plain = found(), found(NUMBA_DISABLE_JIT="1")
    assert kept[0] == plain[0]
    assert kept[1:] == ["False", "False"]


def test_a_copy_of_the_package_elsewhere_brings_its_code_along(tmp_path):
    """As an image of a container does: what is kept names its sources by their places in the package."""
    shutil.copytree(ROOT / "stoker", tmp_path / "stoker", ignore=shutil.ignore_patterns("*.nbc", "*.nbi"))
    code = "import stoker.loops as loops, sys; print(loops.is_at_hand('stoker.gather.kernels'), loops.__file__)"
    found = _run(code, {"PYTHONPATH": str(tmp_path)})
    assert found == ["True", str(tmp_path / "stoker" / "loops.py")]
