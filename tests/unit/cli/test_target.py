"""What a command works on: a place, or a Dataset in the user's code."""

import argparse
import sys

import pytest

from stoker import StokerError
from stoker.cli.target import add_target, dataset_of


@pytest.fixture(autouse=True)
def fresh_imports(monkeypatch, tmp_path):
    """Work in an empty folder, and forget what a test imports from there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # which is taken back, with what commands add
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def parse(*arguments):
    parser = argparse.ArgumentParser()
    add_target(parser)
    return dataset_of(parser.parse_args(arguments))


def script(tmp_path, name, text):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)


def test_a_place_is_a_data_set_of_all_its_columns():
    assert repr(parse("s3://lake/2026/")) == "Dataset('s3://lake/2026/')"
    assert repr(parse("C:/data")) == "Dataset('C:/data')"


def test_columns_and_chunk_size_of_a_place_can_be_given():
    dataset = parse("data", "--columns", "a, user.age", "--chunk-size", "1MiB", "--refresh")
    assert dataset.columns == ("a", "user.age")
    assert (dataset.chunk_bytes, dataset.refresh) == (1 << 20, True)


def test_a_name_in_a_script_or_module_is_that_data_set(tmp_path):
    script(tmp_path, "train_here.py", "import stoker\nthe_data = stoker.Dataset('x', columns=['a'])\n")
    script(tmp_path, "package_here/__init__.py", "")
    script(tmp_path, "package_here/data.py", "import stoker\nthe_data = stoker.Dataset('y')\n")
    assert parse("train_here.py:the_data").columns == ("a",)
    assert parse("train_here:the_data").columns == ("a",)
    assert parse("package_here.data:the_data").sources == ("y",)


def test_a_transform_has_the_same_name_as_when_the_script_runs(tmp_path):
    text = (
        "import stoker\ndef double(t):\n    return t\n"
        "d = stoker.Dataset('x', transform=double, transform_version='1')\n"
    )
    script(tmp_path, "deep/train_there.py", text)
    assert "train_there.double" in repr(parse("deep/train_there.py:d"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py:d"], "no file nowhere.py"),
        (["no_such_module:d"], "no module 'no_such_module'"),
        (["no_such.module:d"], "no module 'no_such.module'"),
        (["train_a.py:nope"], "it has one, two"),
        (["train_b.py:nope"], "it has none"),
        (["train_a.py"], "name the Dataset in it"),
        (["train_a.py:one", "--columns", "a"], "says itself which columns"),
        (["data", "--chunk-size", "much"], "chunk_size"),
    ],
)
def test_what_makes_no_sense_is_a_value_error_that_says_what_would(tmp_path, arguments, words):
    script(tmp_path, "train_a.py", "import stoker\none = stoker.Dataset('x')\ntwo = stoker.Dataset('x')\n")
    script(tmp_path, "train_b.py", "nope = 3\n")
    with pytest.raises(ValueError, match=words):
        parse(*arguments)


@pytest.mark.parametrize("text", ["x = 1 / 0", "import sys\nsys.exit(2)", "import no_such_thing"])
def test_code_that_cannot_be_imported_is_an_error_that_names_the_line(tmp_path, text):
    script(tmp_path, "broken_here.py", text)
    with pytest.raises(StokerError, match=r"importing broken_here\.py .*broken_here\.py, line"):
        parse("broken_here.py:d")
