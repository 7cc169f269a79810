"""The slide for a talk: the pictures of the page on one PNG. They are drawn once, as SVG; here they become pixels.

Only what the pictures are made of is understood: a few tags, straight paths, and rules of classes in style.css. Pillow
(7 MB) rasterises; a program that draws any SVG would bring 30 to 125 MB.
"""

from __future__ import annotations

import io
import math
import os
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.text import printable
from runner.figures.report.gallery import gallery
from runner.figures.report.picture import WIDTH, Picture
from runner.model.figure import in_words
from runner.model.report import Report

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFont import FreeTypeFont

SIZE = (1920, 1080)
_FINE = 2  # drawn so much larger, and reduced
_MOST = 6  # pictures on a slide
_MARGIN, _GAP, _TOP, _BOTTOM, _TITLE = 60, 36, 150, 60, 42
_UNEQUAL = 1.25  # times as large as the smallest
_WIDE = 130  # characters of a line of doubts
_STYLE = Path(__file__).with_name("style.css")
_FONTS = (("DejaVuSans", "DejaVuSans-Bold"), ("LiberationSans-Regular", "LiberationSans-Bold"), ("Arial", "Arial_Bold"))
_ASCII = {"\N{BLACK UP-POINTING TRIANGLE}": "^", "\N{HORIZONTAL ELLIPSIS}": "...", "\N{MINUS SIGN}": "-",
          "\N{EN DASH}": "-", "\N{NARROW NO-BREAK SPACE}": " "}  # fmt: skip
Point = tuple[float, float]
Look = Mapping[str, str]


def png(report: Report) -> bytes:
    """The slide, 1920 x 1080. Text of runs is drawn as it is."""
    from PIL import Image, PngImagePlugin

    image = Image.new("RGB", (SIZE[0] * _FINE, SIZE[1] * _FINE), "#ffffff")
    slide = _Canvas(image, _FINE)
    ink, quiet, label = (_colours()[name] for name in ("ink", "quiet", "label"))
    room = SIZE[0] - 2 * _MARGIN
    if report.demonstration:
        mark = "DEMONSTRATION, NO PERFORMANCE CLAIM"
        slide.text(mark, (SIZE[0] - _MARGIN, 62), 18, label, bold=True, anchor="end")
        slide.box((SIZE[0] - _MARGIN - slide.width(mark, 18, bold=True) - 16, 36, SIZE[0] - _MARGIN + 16, 76), label)
        room -= 520
    size = next((size for size in (48, 38, 30) if slide.width(report.title, size, bold=True) <= room), 24)
    slide.text(slide.fitted(report.title, size, room, bold=True), (_MARGIN, 76), size, ink, bold=True)
    subtitle = report.subtitle.replace("`", "")
    slide.text(slide.fitted(subtitle, 24, SIZE[0] - 2 * _MARGIN), (_MARGIN, 122), 24, quiet)
    made = f"gpu-runner {report.version}, {report.made:%Y-%m-%d}"
    slide.text(made, (_MARGIN, SIZE[1] - 28), 20, quiet)
    doubts = textwrap.wrap(in_words(report.doubts, labelled=True), _WIDE, max_lines=3, placeholder=" ...")
    for place, line in enumerate(reversed(doubts)):
        slide.text(printable(line), (SIZE[0] - _MARGIN, SIZE[1] - 12 - 20 * place), 16, label, anchor="end")
    for picture, (x, y), scale in _placed([*gallery(report)][:_MOST]):
        slide.text(slide.fitted(picture.title, 26, WIDTH * scale, bold=True), (x, y + 26), 26, ink, bold=True)
        _draw(ET.fromstring(picture.svg), image, (x, y + _TITLE), scale)
    out = io.BytesIO()
    about = PngImagePlugin.PngInfo()
    about.add_text("Software", f"gpu-runner {report.version}")
    about.add_text("Comment", printable(in_words(report.doubts)))
    image.reduce(_FINE).save(out, "PNG", pnginfo=about)
    return out.getvalue()


def _placed(pictures: list[Picture]) -> Iterator[tuple[Picture, Point, float]]:
    """Each picture with its corner and its scale, in the grid of equal cells in which they are largest."""
    heights = [float(ET.fromstring(each.svg).attrib["viewBox"].split()[3]) for each in pictures]
    if not pictures:
        return
    grids = []
    for columns in range(1, len(pictures) + 1):
        rows = math.ceil(len(pictures) / columns)
        wide = (SIZE[0] - 2 * _MARGIN - (columns - 1) * _GAP) / columns
        high = (SIZE[1] - _TOP - _BOTTOM - (rows - 1) * _GAP) / rows - _TITLE
        grids.append((columns, wide, high, [min(wide / WIDTH, high / height) for height in heights]))
    columns, wide, high, scales = max(grids, key=lambda grid: min(grid[3]))
    least, is_one_row = min(scales), columns == len(pictures)
    top = _TOP + ((high - max(heights) * least) / 3 if is_one_row else 0.0)
    for place, (picture, scale) in enumerate(zip(pictures, scales, strict=True)):
        row, column = divmod(place, columns)
        corner = _MARGIN + column * (wide + _GAP), top + row * (high + _TITLE + _GAP)
        yield picture, corner, min(scale, _UNEQUAL * least)


class _Canvas:
    """Shapes in units of a picture, on an image that is finer."""

    def __init__(self, image: Image.Image, scale: float, corner: Point = (0.0, 0.0)) -> None:
        from PIL import ImageDraw

        self._image, self._scale, self._corner = image, scale, corner
        self._draw = ImageDraw.Draw(image, "RGBA")

    def _at(self, point: Point) -> Point:
        return self._corner[0] + point[0] * self._scale, self._corner[1] + point[1] * self._scale

    def width(self, content: str, size: float, *, bold: bool = False) -> float:
        font = _font(round(size * self._scale), bold=bold)
        return float(font.getlength(_drawable(content, size))) / self._scale

    def fitted(self, content: str, size: float, room: float, *, bold: bool = False) -> str:
        shown = printable(content, "\N{NARROW NO-BREAK SPACE}")
        most = len(shown)
        while most > 1 and self.width(shown[:most], size, bold=bold) > room:
            most -= 1
        return shown if most == len(shown) else f"{shown[: most - 1]}\N{HORIZONTAL ELLIPSIS}"

    def text(
        self, content: str, at: Point, size: float, fill: str, *, bold: bool = False, anchor: str = "start",
        halo: str | None = None,
    ) -> None:  # fmt: skip
        self._draw.text(
            self._at(at), _drawable(content, size), fill=fill, font=_font(round(size * self._scale), bold=bold),
            anchor={"start": "ls", "middle": "ms", "end": "rs"}[anchor],
            stroke_width=round(2 * self._scale) if halo else 0, stroke_fill=halo,
        )  # fmt: skip

    def box(self, corners: tuple[float, float, float, float], stroke: str) -> None:
        (x1, y1), (x2, y2) = self._at(corners[:2]), self._at(corners[2:])
        self._draw.rounded_rectangle((x1, y1, x2, y2), (y2 - y1) / 2, outline=stroke, width=round(2 * self._scale))

    def shape(self, points: list[Point], look: Look, *, closed: bool) -> None:
        place = [self._at(point) for point in points]
        fill, stroke = _colour(look, "fill"), _colour(look, "stroke")
        if fill and closed and len(place) > 2:
            self._draw.polygon(place, fill)
        if stroke and len(place) > 1:
            width = max(round(float(look.get("stroke-width", "1").removesuffix("px")) * self._scale), 1)
            dashes = [float(each) * self._scale for each in look.get("stroke-dasharray", "").split()]
            line = [*place, place[0]] if closed else place
            for part in _dashed(line, dashes) if dashes else (line,):
                self._draw.line(part, stroke, width, joint="curve")

    def circle(self, middle: Point, radius: float, look: Look) -> None:
        (x, y), fill, stroke = self._at(middle), _colour(look, "fill"), _colour(look, "stroke")
        edge = float(look.get("stroke-width", "1")) / 2 if stroke else 0.0
        for colour, size in ((stroke, radius + edge), (fill, radius - edge)):
            if colour:
                r = size * self._scale
                self._draw.ellipse((x - r, y - r, x + r, y + r), colour)

    def pattern(self, path: str, corners: tuple[float, float, float, float], look: Look) -> None:
        """Strokes in tiles of 8 that are cut off at the edges of an area."""
        (x1, y1), (x2, y2) = self._at(corners[:2]), self._at(corners[2:])
        size = max(round(x2 - x1), 1), max(round(y2 - y1), 1)
        cut = self._image.crop((round(x1), round(y1), round(x1) + size[0], round(y1) + size[1]))
        tiles = _Canvas(cut, self._scale)
        columns, rows = (math.ceil(side / self._scale / 8) for side in size)
        for column, row, (points, _) in product(range(columns), range(rows), list(_lines(path))):
            tiles.shape([(x + 8 * column, y + 8 * row) for x, y in points], look, closed=False)
        self._image.paste(cut, (round(x1), round(y1)))


def _draw(svg: ET.Element, image: Image.Image, corner: Point, scale: float) -> None:
    """A picture onto the slide; a tag that is not known here is an error of ours, which the tests find."""
    canvas = _Canvas(image, scale * _FINE, (corner[0] * _FINE, corner[1] * _FINE))
    patterns = {each.attrib["id"]: each[0].attrib["d"] for each in svg.iter("pattern")}
    for element, below in _elements(svg):
        given, look = element.attrib, _look(element.attrib.get("class", ""))
        number = {key: float(value) for key, value in given.items() if re.fullmatch(r"-?[\d.]+", value)}
        x, y = number.get("x", 0.0), number.get("y", 0.0) + below
        if element.tag == "text":
            size = float(look.get("font-size", "13px").removesuffix("px"))
            if "textLength" in number:
                size *= number["textLength"] / canvas.width(element.text or "", size, bold=True)
            canvas.text(
                element.text or "", (x, y), size,
                look.get("fill", "#000000"), bold=int(look.get("font-weight", "400")) > 550,
                anchor=given.get("text-anchor", "start"), halo=_colour(look, "stroke"),
            )  # fmt: skip
        elif element.tag == "line":
            ends = [(number[f"x{end}"], number[f"y{end}"] + below) for end in (1, 2)]
            canvas.shape(ends, look, closed=False)
        elif element.tag == "rect":
            right, bottom = x + number["width"], y + number["height"]
            if given.get("fill", "").startswith("url(#"):
                canvas.pattern(patterns[given["fill"][5:-1]], (x, y, right, bottom), _look("pattern"))
            if number.get("rx", 0.0) > 4.0:
                canvas.box((x, y, right, bottom), look["stroke"])
            else:
                canvas.shape([(x, y), (right, y), (right, bottom), (x, bottom)], look, closed=True)
        elif element.tag == "circle":
            canvas.circle((number["cx"], number["cy"] + below), number["r"], look)
        elif element.tag == "polygon":
            pairs = [tuple(map(float, pair.split(","))) for pair in given["points"].split()]
            canvas.shape([(each[0], each[1] + below) for each in pairs], look, closed=True)
        else:
            for points, closed in _lines(given["d"]):
                canvas.shape([(px, py + below) for px, py in points], look, closed=closed)


def _elements(svg: ET.Element, below: float = 0.0) -> Iterator[tuple[ET.Element, float]]:
    """What is drawn, in its order, each with how far it is moved down."""
    for element in svg:
        if element.tag == "g":
            moved = re.fullmatch(r"translate\(0 (\d+)\)", element.attrib.get("transform", ""))
            yield from _elements(element, below + (float(moved[1]) if moved else 0.0))
        elif element.tag not in ("title", "desc", "defs"):
            yield element, below


def _lines(d: str) -> Iterator[tuple[list[Point], bool]]:
    """The lines of a path: their points, and whether they are closed. Only M L V, l h and Z stand in ours."""
    points: list[Point] = []
    for command, text in re.findall(r"([MLVlhZ])([^A-Za-z]*)", d):
        values = [float(each) for each in re.findall(r"-?[\d.]+", text)]
        x, y = points[-1] if points else (0.0, 0.0)
        if command == "Z" or (command == "M" and points):
            yield points, command == "Z"
            points = []
        if command in "ML":
            points.append((values[0], values[1]))
        elif command == "l":
            points.append((x + values[0], y + values[1]))
        elif command != "Z":
            points.append((x + values[0], y) if command == "h" else (x, values[0]))
    if points:
        yield points, False


def _dashed(line: list[Point], dashes: list[float]) -> Iterator[list[Point]]:
    """The parts of a line that are drawn: dashes and gaps take turns."""
    place, left, part = 0, dashes[0], [line[0]]
    for start, end in pairwise(line):
        length, done = math.dist(start, end), 0.0
        while length - done > left:
            done += left
            at = (start[0] + (end[0] - start[0]) * done / length, start[1] + (end[1] - start[1]) * done / length)
            if place % 2 == 0:
                yield [*part, at]
            place, part = place + 1, [at]
            left = dashes[place % len(dashes)]
        left -= length - done
        part = [*part, end]
    if place % 2 == 0:
        yield part


@cache
def _colours() -> dict[str, str]:
    """The style's colours on light paper; the slide's is white."""
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", _STYLE.read_text("utf-8").partition("@media")[0]))


@cache
def _rules() -> tuple[tuple[frozenset[str], dict[str, str]], ...]:
    """The style's rules for classes alone, with colours in place of their names, the less telling first."""
    text = _STYLE.read_text("utf-8").partition("@media (max-width")[0]
    rules = []
    for names, body in re.findall(r"^((?:\.[\w.-]+[, ]*)+)\{([^}]*)\}", re.sub(r"(?<=\}) (?=\.)", "\n", text), re.M):
        values = dict(re.findall(r"([\w-]+): ([^;]+);", body))
        look = {key: re.sub(r"var\(--([\w-]+)\)", lambda m: _colours()[m[1]], value) for key, value in values.items()}
        rules += [(frozenset(name.strip().strip(".").split(".")), look) for name in names.split(",")]
    return tuple(sorted(rules, key=lambda rule: len(rule[0])))


@cache
def _look(classes: str) -> dict[str, str]:
    own = frozenset(classes.split())
    return {key: value for names, look in _rules() if names <= own for key, value in look.items()}


def _colour(look: Look, kind: str) -> str | None:
    """The colour of a fill or a stroke, with how much of it is seen; None for none."""
    colour = look.get(kind, "none")
    if colour == "none":
        return None
    seen = float(look.get("opacity", "1")) * float(look.get(f"{kind}-opacity", "1"))
    return f"{colour}{round(255 * seen):02x}"


@cache
def _font(size: int, *, bold: bool) -> FreeTypeFont:
    """A font of this machine, or Pillow's own, which has ASCII only."""
    from PIL import ImageFont

    # By its whole path: Pillow would look in the directory where it is called first, which may be another user's.
    shares = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    places = [Path.home() / ".local/share", *filter(Path.is_absolute, map(Path, shares.split(":")))]
    for names in _FONTS:
        for path in (path for each in places for path in each.glob(f"fonts/**/{names[bold]}.ttf")):
            with suppress(OSError):
                return ImageFont.truetype(str(path), size)
    own = ImageFont.load_default(size)
    assert isinstance(own, ImageFont.FreeTypeFont)
    return own


def _drawable(content: str, size: float) -> str:
    """Text by what its font has: ASCII by Pillow's own."""
    if _font(round(size), bold=False).getname()[0] != "Aileron":
        return content.replace("\N{NARROW NO-BREAK SPACE}", "\N{NO-BREAK SPACE}")
    ascii_only = "".join(_ASCII.get(each, each) for each in content)
    return ascii_only.encode("ascii", "backslashreplace").decode("ascii")
