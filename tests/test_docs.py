"""Every Python block in README and docs runs, each page from top to bottom, in an empty folder."""

import re
from pathlib import Path

import pytest

import stoker
import stoker.torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = {page: blocks for page in PAGES if (blocks := BLOCK.findall(page.read_text()))}


@pytest.mark.parametrize(("page", "blocks"), BLOCKS.items(), ids=[page.name for page in BLOCKS])
def test_every_python_block_of_a_page_runs(page, blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


def test_every_link_to_a_file_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=lambda page: page.name)
def test_every_row_of_a_table_is_one_line_and_has_the_cells_of_its_heading(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.findall(r"^\|.*(?:\n.+)*", text, re.MULTILINE):
        widths = [len(re.findall(r"(?<!\\)\|", line)) for line in paragraph.splitlines()]
        assert len(set(widths)) == 1, paragraph


@pytest.mark.parametrize("module", [stoker, stoker.torch], ids=lambda module: module.__name__)
def test_the_reference_has_every_public_name(module):
    page = ROOT / "docs" / "reference" / "api" / f"{module.__name__.split('.')[-1]}.md"
    assert set(re.findall(rf"^::: {module.__name__}\.(\w+)$", page.read_text(), re.MULTILINE)) >= set(module.__all__)
