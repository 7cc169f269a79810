"""Images of digits to train on, 8 x 8 grey values each: scikit-learn's, or drawn here where it is not installed.

scikit-learn ships them as ``load_digits``: 1797 handwritten digits, the test part of "Optical Recognition of
Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI). Those drawn here are as many, from a font, shifted and
noisy; they are equal on every machine and Python.
"""

from __future__ import annotations

import importlib
import random
from dataclasses import dataclass
from typing import Any

COUNT, SIDE = 1797, 8
# Of all images: the rest is for validation. 1536 is a multiple of many numbers of ranks and batch sizes.
TRAINING = 1536
_FONT = (
    ".###. #...# #..## #.#.# ##..# #...# .###.",
    "..#.. .##.. ..#.. ..#.. ..#.. ..#.. .###.",
    ".###. #...# ....# ...#. ..#.. .#... #####",
    "##### ...#. ..#.. ...#. ....# #...# .###.",
    "...#. ..##. .#.#. #..#. ##### ...#. ...#.",
    "##### #.... ####. ....# ....# #...# .###.",
    "..##. .#... #.... ####. #...# #...# .###.",
    "##### ....# ...#. ..#.. .#... .#... .#...",
    ".###. #...# #...# .###. #...# #...# .###.",
    ".###. #...# #...# .#### ....# ...#. .##..",
)
_NOISE = 0.35


@dataclass(frozen=True)
class Digits:
    """What to train on.

    Attributes:
        origin: where the images are from, for people.
        images: rows of ``SIDE * SIDE`` grey values from 0 to 1.
        labels: the digit of each.
    """

    origin: str
    images: list[list[float]]
    labels: list[int]


def load(data: str) -> Digits:
    """``digits``: scikit-learn's; ``drawn``: drawn here; ``auto``: scikit-learn's if it is installed.

    Raises:
        ImportError: scikit-learn is wanted and not installed.
    """
    if data == "drawn":
        return drawn()
    try:
        return _of_sklearn(importlib.import_module("sklearn.datasets").load_digits())
    except ImportError:
        if data == "auto":
            return drawn()
        raise


def drawn() -> Digits:
    """Digits of a font, each shifted by up to a pixel, of its own brightness, with noise."""
    chance = random.Random(8)
    images, labels = [], []
    for _ in range(COUNT):
        # Only random(): its series is the same in every Python.
        label, right, brightness = int(chance.random() * 10), int(chance.random() * 3), 0.6 + 0.4 * chance.random()
        down = int(chance.random() * 2)
        rows = _FONT[label].split()
        image = [_NOISE * chance.random() for _ in range(SIDE * SIDE)]
        for y, row in enumerate(rows):
            for x, dot in enumerate(row):
                if dot == "#":
                    at = (y + down) * SIDE + x + right
                    image[at] = min(image[at] + brightness * (1.0 - _NOISE), 1.0)
        images.append(image)
        labels.append(label)
    return Digits("digits drawn by this recipe (scikit-learn is not used)", images, labels)


def _of_sklearn(found: Any) -> Digits:
    version = importlib.import_module("sklearn").__version__
    images = [[value / 16.0 for value in image] for image in found.data.tolist()]
    return Digits(f"scikit-learn {version}'s digits", images, [int(label) for label in found.target.tolist()])
