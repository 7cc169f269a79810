"""The picture of README.md: docs/main-job.svg from docs/main-job.txt, the output of a real run of the main job.

``python -m tests.support.terminal_picture`` draws it. The text: the command, and what ``gpu-runner submit --gpus 16
--wait 2>&1`` printed in the box, with the home directory as ``~``.
"""

from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS, LINE, CHARACTER, MARGIN = 110, 18, 8.4, 14  # characters; pixels
COLOURS = {"$ ": "#ffffff", "verdict: ": "#7ee787", "  throughput: ": "#7ee787"}


def rendered(text: str) -> str:
    """The SVG: long lines are broken where a terminal of so many columns breaks them."""
    rows = [
        (
            line[at : at + COLUMNS],
            next((colour for start, colour in COLOURS.items() if line.startswith(start)), "#c9d1d9"),
        )
        for line in text.splitlines()
        for at in range(0, max(1, len(line)), COLUMNS)
    ]
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), len(rows) * LINE + 2 * MARGIN
    lines = (
        f'<text x="{MARGIN}" y="{MARGIN + LINE * place + 13}" fill="{colour}" xml:space="preserve">{escape(row)}</text>'
        for place, (row, colour) in enumerate(rows)
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="monospace" font-size="14" role="img" aria-label={quoteattr(text.splitlines()[0])}>',
            '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
            *lines,
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    (DOCS / "main-job.svg").write_text(rendered((DOCS / "main-job.txt").read_text("utf-8")), "utf-8")
