"""A story as one self-contained HTML file: no script, no font, no request to anywhere.

Charts are boxes whose widths are shares, drawn by the page's style sheet at any width, light, dark, or on paper. Every
text that comes from outside is escaped: nobody vouches for the names in a data set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from stoker.doctor import story
from stoker.doctor.story import Bar, Section, Share
from stoker.doctor.verdict import DoctorResult
from stoker.errors import printable

# What neither HTML nor XML allows in a text: controls, lone surrogates, noncharacters. Directions that turn text around
# are among them: a file name must not rewrite the line that it stands in.
_FORBIDDEN = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_BLANKS = re.compile(r"[\t\n\r\f\v]+")
# A line must not break between the hyphens of an option that is to be typed.
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_LOOKS = {"fed": "is-fine", "starved": "is-starved"}


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Stoker {command}: {headline}</title>
<style>
{style}</style>
</head>
<body>
<main>
<header>
<p class="brand"><b>stoker</b> {command} · {about}</p>
<p class="status {look}"><span aria-hidden="true">{mark}</span> {stands_for}</p>
<h1>{headline}</h1>
<p class="verdict">{verdict}</p>
{lead}
<div class="figures">
{figures}
</div>
{caveats}
</header>

{body}
</main>
</body>
</html>
"""


def check_report(path: Path) -> None:
    """Make sure that a page can be written, before anything is measured for it.

    Raises:
        ValueError: `path` is a folder.
    """
    path = path.expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file for the page, such as {path / 'doctor.html'}")


def write_report(result: DoctorResult, path: Path) -> None:
    """Write the page of a result; see `write_page`."""
    write_page(report_html(result), path)


def write_page(html: str, path: Path) -> None:
    """Write a page, whole or not at all, in a folder that is made where there is none."""
    path = path.expanduser()
    check_report(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(html, encoding="utf-8")
    aside.replace(path)


def report_html(result: DoctorResult) -> str:
    """Return the page of a result."""
    numbers, (mark, stands_for) = result.numbers, story.status(result)
    return page_html(
        story.sections(result),
        command="doctor",
        about=(numbers.when, numbers.data.text),
        status=(_LOOKS.get(result.kind, "is-open"), mark, f"{stands_for} · {result.sure}"),
        headline=story.headline(result),
        says=(result.sentence, result.then),
        tiles=story.tiles(result),
        caveats=result.notes,
    )


def page_html(
    parts: Iterable[Section],
    *,
    command: str,
    about: Sequence[str],
    status: tuple[str, str, str],
    headline: str,
    says: tuple[str, str],
    tiles: Iterable[tuple[str, str, bool]],
    caveats: Iterable[str] = (),
) -> str:
    """Return a page: one HTML document without script and without any request.

    Args:
        parts: Its sections.
        command: Whose page it is: "doctor".
        about: Of what it is, and of which day.
        status: A class of the style sheet, a mark and its words.
        headline: In a few words.
        says: What was found, and what follows from it; "" for nothing.
        tiles: Figures: value, what it is, and whether it stands out.
        caveats: What a reader must know before anything else.
    """
    look, mark, stands_for = status
    figures = "\n".join(
        f"<div{' class=is-ours' if is_ours else ''}><b>{words(value)}</b><span>{words(text)}</span></div>"
        for value, text, is_ours in tiles
    )
    return _PAGE.format(
        style=(files("stoker.doctor") / "page.css").read_text(encoding="utf-8"),
        command=command,
        about=words(" · ".join(about)),
        look=look,
        mark=mark,
        stands_for=words(stands_for),
        headline=words(headline),
        verdict=_sentence(says[0]),
        lead=_paragraphs(says[1:], kind="lead"),
        figures=figures,
        caveats=_paragraphs(caveats, kind="caveat"),
        body="\n\n".join(map(_section, parts)),
    )


def words(text: str) -> str:
    """Return a text on one line as HTML, what no page may hold replaced by U+FFFD."""
    return escape(printable(_FORBIDDEN.sub("\ufffd", _BLANKS.sub(" ", text))))


def _sentence(text: str) -> str:
    """Return a text as HTML, with a capital and a full stop."""
    text = text.strip()
    ends = "" if text[-1:] in (".", "!", "?", ":", "…", "") else "."
    return _OPTION.sub(r'<span class="nowrap">\g<0></span>', words(text[:1].upper() + text[1:] + ends))


def _paragraphs(texts: Iterable[str], *, kind: str) -> str:
    return "\n".join(f'<p class="{kind}">{_sentence(text)}</p>' for text in texts if text.strip())


def _section(section: Section) -> str:
    pairs = "\n".join(f"<dt>{words(name)}</dt><dd>{words(text)}</dd>" for name, text in section.pairs if text)
    parts = (
        _paragraphs([section.lead], kind="soft"),
        _bars(section) if section.bars else "",
        _table(section) if section.rows else "",
        f"<dl>\n{pairs}\n</dl>" if pairs else "",
        f'<pre tabindex="0">{words(section.code)}</pre>' if section.code else "",
        _paragraphs(section.lines, kind="note"),
    )
    body = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{words(section.title)}</h2>\n{body}\n</section>"


def _bars(section: Section) -> str:
    mark, about = section.mark
    line = "" if mark is None else f'<b class="mark" style="left:{_percent(mark)}"></b>'
    key = f'<p class="key">{"" if mark is None else "<b></b>"}{words(about)}</p>\n' if about else ""
    body = "\n".join(_split(bar) if bar.parts else _bar(bar, line) for bar in section.bars)
    label = f"{section.title}: {'; '.join(f'{bar.name} {bar.value}' for bar in section.bars)}"
    return f'<figure role="group" aria-label="{words(label)}">\n{key}{body}\n</figure>'


def _bar(bar: Bar, line: str) -> str:
    spread = ""
    if bar.spread is not None:
        low, high = (min(1.0, share) for share in bar.spread)
        spread = f'<u style="left:{_percent(low)};width:{_percent(high - low)}"></u>'
    return (
        f'<div class="row is-{bar.kind}"><span class="name">{words(bar.name)}</span>'
        f'<span class="value">{words(bar.value)}</span>'
        f'<span class="bar"><i style="width:{_percent(bar.share)}"></i>{spread}{line}</span></div>'
    )


def _split(bar: Bar) -> str:
    pieces = "".join(
        f'<i class="{"is-lost" if is_lost else "is-work"}" style="width:{_percent(share)}"></i>'
        for _, _, share, is_lost in bar.parts
    )
    caption = " · ".join(f"{name} {text}" for name, text, _, _ in bar.parts)
    return (
        f'<div class="split"><span class="name">{words(bar.name)}</span>'
        f'<span class="value">{words(bar.value)}</span><span class="bar">{pieces}</span>'
        f'<span class="caption">{words(caption)}</span></div>'
    )


def _table(table: Section) -> str:
    """Return a table that scrolls by itself where it is too wide."""
    sides = ["" if head.lstrip("~").startswith(">") else ' class="words"' for head in table.head]
    heads = "".join(
        f'<th scope="col"{side}>{words(head.lstrip("~>"))}</th>' for side, head in zip(sides, table.head, strict=True)
    )
    body = ""
    for number, row in enumerate(table.rows):
        first, *cells = (cell.text if isinstance(cell, Share) else cell for cell in row)
        body += f'<tr{" class=is-marked" if number in table.marked else ""}><th scope="row">{words(first)}</th>'
        body += "".join(f"<td{side}>{words(cell)}</td>" for side, cell in zip(sides[1:], cells, strict=True))
        body += "</tr>\n"
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{words(table.title)}">\n<table>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>"
    )


def _percent(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.2f}%"
