"""What matplotlib wrote, made part of a page: its colours become the page's, its fonts too, and no name clashes.

An SVG inside HTML shares the page's style sheet and its space of ids, so that one drawing serves light, dark and paper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from xml.etree import ElementTree as ET

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_URL = re.compile(r"url\(#([^)]+)\)")
_FONT = re.compile(r"font-family:[^;]*;?\s*")
_SHORTHAND = re.compile(r"font: (?:(\d{3}|bold) )?([\d.]+px)[^;]*")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_SKIPPED = {f"{_SVG}metadata", f"{_SVG}style"}


def inline(drawn: str, *, key: str, label: str, kind: str, colours: Mapping[str, str]) -> str:
    """Return a drawing to be put into a page.

    Args:
        drawn: As matplotlib saved it.
        key: In front of every id: another one for each drawing on a page.
        label: What it shows, for who cannot see it.
        kind: Its class.
        colours: Which custom property of the page stands for which colour: "#d6500c" to "ember".
    """
    root = ET.fromstring(drawn)
    _drop(root)
    used = _used(root)
    for element in root.iter():
        _rewrite(element, key=key, used=used, colours=colours)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    body = "".join(_text(child) for child in root)
    return (
        f'<svg class="{kind}" role="img" aria-label="{escape(label)}" viewBox="{escape(root.get("viewBox", ""))}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _drop(root: ET.Element) -> None:
    # Its style sheet has one rule for everything: inside a page, that is the whole page.
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in _SKIPPED:
                parent.remove(child)


def _used(root: ET.Element) -> set[str]:
    names = set()
    for element in root.iter():
        for name, value in element.attrib.items():
            names.update(_URL.findall(value))
            if name in (_XLINK, "href"):
                names.add(value.removeprefix("#"))
    return names


def _rewrite(element: ET.Element, *, key: str, used: set[str], colours: Mapping[str, str]) -> None:
    attributes = element.attrib
    name = attributes.pop("id", None)
    if name in used:
        attributes["id"] = f"{key}-{name}"
    target = attributes.pop(_XLINK, None)
    if target is not None:
        attributes["href"] = f"#{key}-{target.removeprefix('#')}"
    # A custom property has no say in an attribute, only in a style.
    paints = [f"{paint}: {attributes.pop(paint)}" for paint in ("fill", "stroke") if paint in attributes]
    style = "; ".join([*paints, *([attributes.pop("style")] if "style" in attributes else [])])
    if style:
        style = _SHORTHAND.sub(_plain_font, _FONT.sub("", style))
        style = _URL.sub(lambda found: f"url(#{key}-{found[1]})", style)
        attributes["style"] = _COLOUR.sub(lambda found: _variable(found[0], colours), style).strip("; ")
    if "clip-path" in attributes:
        attributes["clip-path"] = _URL.sub(lambda found: f"url(#{key}-{found[1]})", attributes["clip-path"])
    if "d" in attributes:
        attributes["d"] = " ".join(_NUMBER.sub(_rounded, attributes["d"]).split())


def _plain_font(found: re.Match[str]) -> str:
    return f"font-size: {found[2]}" + (f"; font-weight: {found[1]}" if found[1] else "")


def _variable(colour: str, colours: Mapping[str, str]) -> str:
    return f"var(--{colours[colour]})" if colour in colours else colour


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _text(element: ET.Element) -> str:
    """Return an element without the name space in front of each name, which HTML does not know."""
    tag = element.tag.removeprefix(_SVG)
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in element.attrib.items())
    # Blanks between elements are matplotlib's layout of its file; those inside a text are the reader's.
    inside = escape(element.text or "") if tag == "text" else ""
    inside += "".join(_text(child) for child in element)
    return f"<{tag}{attributes}/>" if not inside else f"<{tag}{attributes}>{inside}</{tag}>"
