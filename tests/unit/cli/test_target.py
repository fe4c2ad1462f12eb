"""What a command works on: a place, or a Dataset in the user's code."""

import json
import sys

import pytest
from tests.strategies import write_files

from stoker.cli import main


@pytest.fixture(autouse=True)
def fresh_imports(monkeypatch, tmp_path):
    """Work in a folder with some data, and forget what a test imports from there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # which is taken back, with what commands add
    write_files(tmp_path / "data", [100])
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def inspected(capsys):
    """Return what `stoker inspect --json` says of a target."""

    def call(*arguments):
        assert main(["inspect", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def refused(capsys):
    """Return exit code and message of `stoker inspect`."""

    def call(*arguments):
        code = main(["inspect", *arguments])
        return code, capsys.readouterr().err

    return call


def columns_of(found):
    return [column["column"] for column in found["columns"]]


def script(tmp_path, name, text):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)


def test_a_place_is_a_data_set_of_all_its_columns(inspected, refused):
    assert columns_of(inspected("data")) == ["id", "half", "flag", "vector", "history", "word"]
    assert refused("C:/data")[0] == 1  # a place, and no name in a module C
    assert "nothing is stored at" in refused("C:/data")[1]


def test_columns_and_chunk_size_of_a_place_can_be_given(inspected):
    assert columns_of(inspected("data", "--columns", "id, word")) == ["id", "word"]
    assert inspected("data", "--chunk-size", "1kB")["num_chunks"] > inspected("data")["num_chunks"]


@pytest.mark.parametrize("target", ["train_here.py:the_data", "train_here:the_data", "package_here.data:the_data"])
def test_a_name_in_a_script_or_module_is_that_data_set(tmp_path, inspected, target):
    text = "import stoker\nthe_data = stoker.Dataset('data', columns=['half'])\n"
    script(tmp_path, "train_here.py", text)
    script(tmp_path, "package_here/__init__.py", "")
    script(tmp_path, "package_here/data.py", text)
    assert columns_of(inspected(target)) == ["half"]


def test_a_transform_has_the_same_name_as_when_the_script_runs(tmp_path, capsys):
    text = (
        "import stoker\ndef double(t):\n    return {'id': t['id'].to_numpy() * 2}\n"
        "d = stoker.Dataset('data', transform=double, transform_version='1')\n"
    )
    script(tmp_path, "deep/train_there.py", text)
    assert main(["warm", "deep/train_there.py:d", "--cache", "cache"]) == 0
    capsys.readouterr()
    assert main(["cache", "ls", "cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["datasets"][0]["transform"] == "train_there.double"


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
def test_what_makes_no_sense_is_refused_with_what_would(tmp_path, refused, arguments, words):
    script(tmp_path, "train_a.py", "import stoker\none = stoker.Dataset('x')\ntwo = stoker.Dataset('x')\n")
    script(tmp_path, "train_b.py", "nope = 3\n")
    code, message = refused(*arguments)
    assert code == 2
    assert words in message


@pytest.mark.parametrize("text", ["x = 1 / 0", "import sys\nsys.exit(2)", "import no_such_thing"])
def test_code_that_cannot_be_imported_is_an_error_that_names_the_line(tmp_path, refused, text):
    script(tmp_path, "broken_here.py", text)
    code, message = refused("broken_here.py:d")
    assert code == 1
    assert "importing broken_here.py" in message
    assert "broken_here.py, line" in message
