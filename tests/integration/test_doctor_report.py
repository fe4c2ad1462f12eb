"""The page as a user asks for it: `stoker doctor --html`, and what happens where that cannot be."""

import json
import subprocess
import sys

import pytest
from tests.strategies import write_files
from tests.unit.doctor.report.pages import Page
from tests.unit.doctor.report.results_made import data_bound

from stoker.cli import main
from stoker.cli.arguments import OK, WRONG_USAGE
from stoker.doctor.report import check_report, write_report


@pytest.fixture
def data(tmp_path):
    write_files(tmp_path / "data", [300, 200])
    return str(tmp_path / "data")


def test_a_real_examination_becomes_a_page_that_says_what_the_json_says(data, tmp_path, capsys):
    page_file = tmp_path / "out" / "doctor.html"
    arguments = ["doctor", data, "--step-time", "20ms", "--batch-size", "64", "--budget", "2", "--json"]
    code = main([*arguments, "--gpu-hour", "2.50", "--html", str(page_file)])
    assert code == OK
    found = json.loads(capsys.readouterr().out)
    page = Page(page_file.read_text(encoding="utf-8"))
    assert found["verdict"]["sentence"] in page.text
    for stage in found["stages"]:
        assert stage["name"] in page.text
    for ceiling in found["ceilings"]:
        assert ceiling["name"] in page.text
    assert found["command"] in page.text
    assert "GPU" in page.text
    assert "What it costs" in page.text
    assert [child.name for child in page_file.parent.iterdir()] == ["doctor.html"]


def test_a_page_that_would_be_a_folder_is_refused_before_anything_is_measured(data, tmp_path, capsys):
    assert main(["doctor", data, "--step-time", "20ms", "--html", str(tmp_path)]) == WRONG_USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "is a folder" in said


def test_without_the_library_the_error_names_what_to_install():
    # A process of its own, in which matplotlib cannot be found: nothing in this one is touched.
    program = """
import sys
from pathlib import Path
from stoker.doctor.report import check_report
sys.modules["matplotlib"] = None
try:
    check_report(Path("page.html"))
except ValueError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'stoker[report]'" in ended.stdout, ended.stderr


def test_importing_the_doctor_does_not_import_the_library():
    program = "import sys, stoker.doctor.report, stoker.doctor.results; print('matplotlib' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"


def test_a_page_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "doctor.html"
    path.write_text("before")
    write_report(data_bound(), path)
    assert Page(path.read_text(encoding="utf-8")).text.startswith("Stoker doctor")
    assert list(tmp_path.iterdir()) == [path]


def test_a_style_of_the_users_own_changes_nothing_and_is_left_as_it_was(tmp_path):
    import matplotlib as mpl

    write_report(data_bound(), tmp_path / "plain.html")
    with mpl.rc_context({"font.size": 30, "axes.grid": True, "svg.fonttype": "path", "text.parse_math": True}):
        write_report(data_bound(), tmp_path / "styled.html")
        assert mpl.rcParams["font.size"] == 30
        assert mpl.rcParams["svg.fonttype"] == "path"
    assert (tmp_path / "plain.html").read_bytes() == (tmp_path / "styled.html").read_bytes()


def test_a_page_can_be_checked_for_before_there_is_a_result(tmp_path):
    check_report(tmp_path / "new" / "page.html")
    with pytest.raises(ValueError, match=r"doctor\.html"):
        check_report(tmp_path)
    assert not (tmp_path / "new").exists()
