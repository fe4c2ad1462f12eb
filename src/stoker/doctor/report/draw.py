"""Charts by matplotlib, each drawn twice: for a desk and for a phone."""

from __future__ import annotations

import io
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from stoker.doctor.report.markup import clean
from stoker.doctor.report.svg import inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 860, 326
"""Widths in pixels: of the column on a desk, of a phone of 390 less its margins."""

# A dot to the pixel, so that all lengths here are pixels.
_DPI = 72
TITLE, LABEL, SMALL = 13.5, 12.5, 11.5
"""Sizes of text."""

COLOURS = {
    "ink": "#1d1b18",
    "soft": "#6a655c",
    "line": "#e4e0d8",
    "track": "#efece5",
    "hatch": "#cfc7b8",
    "card": "#ffffff",
    "busy": "#7d8794",
    "busy-soft": "#c3c9d0",
    "ember": "#d6500c",
    "ember-soft": "#f0a982",
    "good": "#2f7d4f",
    "on-ember": "#fffefd",
}
"""Colours to draw with, by the custom property that stands for them on the page."""
_NAMES = {colour: name for name, colour in COLOURS.items()}


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A sheet to draw on, in pixels from its upper left corner.

    Attributes:
        figure: What matplotlib draws on.
        axes: Of the whole sheet, one unit a pixel, y downwards.
        width: Of the sheet.
        height: Of the sheet.
    """

    figure: Figure
    axes: Axes
    width: int
    height: int

    @property
    def is_wide(self) -> bool:
        """Whether it is for a desk."""
        return self.width >= WIDE

    def text(
        self, x: float, y: float, text: str, *, colour: str = "ink", size: float = LABEL, is_bold: bool = False,
        side: str = "left",
    ) -> None:  # fmt: skip
        """Write one line whose middle is at y."""
        self.axes.text(
            x, y, clean(text), color=COLOURS[colour], fontsize=size, fontweight="bold" if is_bold else "normal",
            ha=side, va="center_baseline",
        )  # fmt: skip

    def box(self, x: float, y: float, width: float, height: float, *, colour: str, hatch: str = "") -> None:
        """Fill a rectangle, hatched where asked: hatched in the page's sense is time that is lost."""
        from matplotlib.patches import Rectangle

        stroke = COLOURS["hatch"] if hatch else "none"
        self.axes.add_patch(
            Rectangle((x, y), width, height, facecolor=COLOURS[colour], hatch=hatch or None, edgecolor=stroke, lw=0)
        )

    def rule(self, x: float, y0: float, x1: float, y1: float, *, colour: str = "line", dashed: bool = False) -> None:
        """Draw a straight line."""
        style = (0, (4, 3)) if dashed else "solid"
        self.axes.plot([x, x1], [y0, y1], color=COLOURS[colour], linewidth=1.2, linestyle=style, solid_capstyle="butt")

    def plot_area(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Return axes with scales of their own; margins in pixels from the sheet's edges."""
        width, height = self.width - left - right, self.height - top - bottom
        axes = self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))
        axes.patch.set_visible(False)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(COLOURS["line"])
        axes.tick_params(colors=COLOURS["soft"], labelsize=SMALL, length=0, pad=6)
        return axes


Draw: TypeAlias = Callable[[Sheet], None]
Height: TypeAlias = Callable[[bool], float]


def chart(draw: Draw, *, key: str, label: str, height: Height) -> str:
    """Return a chart for both widths; the page's style shows the one that fits.

    Args:
        draw: Draws it on a sheet.
        key: Names it: no two on a page alike.
        label: What it shows, in a sentence, for who cannot see it.
        height: Pixels that it takes, on a wide sheet and on a narrow one.
    """
    label = clean(label)
    return "\n".join(
        inline(
            _drawn(draw, key=f"{key}-{kind}", width=width, height=round(height(width == WIDE))),
            key=f"{key}-{kind}",
            label=label,
            kind=kind,
            colours=_NAMES,
        )
        for kind, width in (("wide", WIDE), ("narrow", NARROW))
    )


def text_width(text: str, *, size: float, is_bold: bool = False) -> float:
    """Return about how wide a text is, in pixels: fonts differ, so rather too much."""
    cells = sum(1.75 if unicodedata.east_asian_width(c) in "WF" else 1.0 for c in text)
    return cells * size * (0.6 if is_bold else 0.555)


def fitted(text: str, *, width: float, size: float, is_bold: bool = False) -> str:
    """Return a text that fits, its end left out where it must be."""
    text = clean(text)
    if text_width(text, size=size, is_bold=is_bold) <= width:
        return text
    while text and text_width(text + "…", size=size, is_bold=is_bold) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def wrapped(text: str, *, width: float, size: float) -> list[str]:
    """Return the lines of a text, a word too long for one cut."""
    lines: list[str] = []
    line = ""
    for word in clean(text).split(" "):  # and not where a figure holds on to its unit
        longer = f"{line} {word}".strip()
        if line and text_width(longer, size=size) > width:
            lines.append(line)
            longer = word
        line = fitted(longer, width=width, size=size)
    return [*lines, line] if line else lines


def _drawn(draw: Draw, *, key: str, width: int, height: int) -> str:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # whoever runs this may have a style of their own
        mpl.rcParams["svg.fonttype"] = "none"  # text stays text: found, read aloud, and set in the page's own font
        mpl.rcParams["svg.hashsalt"] = key
        mpl.rcParams["text.parse_math"] = False  # a column may be called "$price"
        mpl.rcParams["hatch.linewidth"] = 1.3
        # The page's font draws the letters, whichever of them matplotlib's own lacks.
        warnings.filterwarnings("ignore", message="(Glyph|Matplotlib currently does not support)")
        # No pyplot: it keeps figures and may look for a screen.
        figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor="none")
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        draw(Sheet(figure=figure, axes=axes, width=width, height=height))
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return out.getvalue()
