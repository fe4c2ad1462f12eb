"""What the documentation site has besides docs/: files of the repository as pages, the commands' help, llms.txt."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

from stoker.cli import main

ROOT = Path(__file__).resolve().parent.parent

# Files outside of docs/ that pages link to -> where they are in the site.
OUTSIDE = {
    "ARCHITECTURE.md": "concepts/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    **{
        path.relative_to(ROOT).as_posix(): f"{folder}/{path.name}"
        for folder, pattern in {"results": "benchmarks/results/*.*", "examples": "examples/*.py"}.items()
        for path in sorted(ROOT.glob(pattern))
    },
}
# Links that are right in the repository, and the page that stands for their target in the site.
INSTEAD = {"docs/decisions": "decisions/index.md", "benchmarks/results": "results/index.md", "README.md": "index.md"}

RESULTS_HEAD = """# Results by machine

One table for each question, with a row for each machine. A ratio is ours over the ceiling, taken in one run; the
median over the rounds counts. The name of a machine leads to the whole result: rounds, remarks, versions, and the
command that measures it again. [All loaders on the same rows](../benchmarks.md#warm-epochs) is a page of its own.

"""
ROWS_HEAD = "| machine | ratio, median | from | to | ours | ceiling | date |\n|---|---|---|---|---|---|---|"
ANSWER = re.compile(
    r"\A# (?P<question>.*)\n\n\| ours .*\n\|[-|]+\|\n\| (?P<cells>.*) \|\n\n(?P<unit>Rates in [^;]*)", re.MULTILINE
)

LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
HELP = re.compile(r"^<!-- (stoker[ a-z-]*) --help -->$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of docs/, and a table of the results."""
    for path, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "results/index.md", content=table_of_results()))
    return files


def table_of_results() -> str:
    """Return a page with a table for each question of benchmarks/results, with a row for each machine."""
    text = RESULTS_HEAD
    questions: dict[str, list[str]] = {}
    for path in sorted(ROOT.glob("benchmarks/results/*.md")):
        found = ANSWER.search(result := path.read_text())
        if found is None:  # the table of all loaders
            continue
        about = dict(re.findall(r"^- (\w+): (.*)$", result, re.MULTILINE))
        machine = (about.get("gpu") or about["processor"]).replace("Intel(R) Xeon(R) Processor", "Intel Xeon")
        ours, ceiling, *ratios = found["cells"].split(" | ")[:5]
        row = " | ".join([f"| [{machine}]({path.name})", *ratios, ours, ceiling, f"{about['date']} |"])
        questions.setdefault(
            f"## {found['question'][0].upper()}{found['question'][1:]}\n\n{found['unit']}\n\n{ROWS_HEAD}", []
        ).append(row)
    for heading, rows in questions.items():
        text += "\n".join([heading, *rows, "\n"])
    return text


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to where files are in the site, and insert the commands' help."""
    uri = page.file.src_uri
    if uri.startswith("results/"):
        page.meta["search"] = {"exclude": True}
    origin = next((path for path, other in OUTSIDE.items() if other == uri), f"docs/{uri}")

    def moved(link: re.Match[str]) -> str:
        target, anchor = link[1], link[2] or ""
        if ":" in target:
            return link[0]
        path = os.path.normpath(PurePosixPath(origin).parent / target)
        inside = OUTSIDE.get(path) or INSTEAD.get(path) or path.removeprefix("docs/")
        return f"]({os.path.relpath(inside, PurePosixPath(uri).parent)}{anchor})"

    return HELP.sub(lambda line: f"```text\n{help_of(line[1])}```", LINK.sub(moved, markdown))


def help_of(command: str) -> str:
    """Return what `command --help` prints on 90 columns."""
    os.environ["COLUMNS"] = "90"
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = main([*command.split()[1:], "--help"])
    if code:
        raise ValueError(f"{command} --help failed: there is no such command")
    return text.getvalue()


def on_nav(nav: Any, config: Any, **_: Any) -> None:
    """Keep the navigation, of which `llms.txt` is made."""
    config.extra["nav"] = nav


def on_post_build(config: Any) -> None:
    """Write llms.txt (https://llmstxt.org), and the Markdown of pages beside them."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    section = ""
    for title, page in pages_of(config.extra["nav"].items, "Start"):
        if title != section:
            lines += ["", f"## {title}", ""]
            section = title
        uri = page.file.dest_uri
        if "\n::: " not in page.markdown:  # else it is a reference, whose text is in docstrings
            uri = page.file.src_uri
            Path(config.site_dir, uri).write_text(page.markdown)
        lines.append(f"- [{page.title}]({uri}): {first_sentence(page.markdown)}")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n")


def pages_of(items: list[Any], section: str) -> Iterator[tuple[str, Any]]:
    """Give each page of the navigation with the section it is in."""
    for item in items:
        if item.is_page:
            yield section, item
        elif item.is_section:
            yield from pages_of(item.children, item.title)


def first_sentence(markdown: str) -> str:
    """Return the first sentence behind a page's heading, without its links."""
    paragraphs = re.split(r"\n\s*\n", markdown.strip())
    text = next((" ".join(p.split()) for p in paragraphs if p[0].isalpha() or p[0] in "`*"), "")
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.split(r"(?<=[.:])\s", text)[0].rstrip(":"))
