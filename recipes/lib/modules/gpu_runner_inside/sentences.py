"""Sentences to train a text classifier on: reviews drawn from a small grammar, equal on every machine and Python.

A review is three opinions, such as "the film was very good , the music was hardly dull but the end was not clever": a
``but`` stands before the second or the third, and the opinion after it decides. So its label follows from the word
``but``, wherever it is, from an adjective behind it, and from a word such as ``not`` that turns the adjective round:
counting words does not give it away.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

COUNT = 4608
# Of all reviews: the rest is for validation. 4096 is a multiple of many numbers of ranks and batch sizes.
TRAINING = 4096
_SUBJECTS = ("cast", "end", "film", "light", "music", "plot", "sound", "text")
_PLAIN, _TURNED = ("quite", "really", "so", "very"), ("hardly", "never", "not", "rarely")
_PRAISE = ("bright", "clever", "fine", "fresh", "good", "great", "lovely", "warm")
_BLAME = ("awful", "bad", "cold", "dark", "dull", "poor", "silly", "stale")
_JOINED, _BUT = (",", ";", "and"), "but"
_OPINIONS = 3
_SHARE_TURNED = 0.25
CLASSES = ("blames", "praises")
# The first stands before every review, as BERT's does: what the model finds there says the class.
VOCABULARY = ("[CLS]", "the", "was", _BUT, *_JOINED, *_SUBJECTS, *_PLAIN, *_TURNED, *_PRAISE, *_BLAME)
LENGTH = 1 + 5 * _OPINIONS + _OPINIONS - 1  # tokens of every review; there is no padding


@dataclass(frozen=True)
class Sentences:
    """What to train on.

    Attributes:
        tokens: rows of ``LENGTH`` numbers of words in ``VOCABULARY``.
        labels: 0 or 1 for each (``CLASSES``).
    """

    tokens: list[list[int]]
    labels: list[int]


def drawn() -> Sentences:
    """All reviews, those of the training first."""
    chance = random.Random(9)
    number = {word: place for place, word in enumerate(VOCABULARY)}

    def one_of(words: tuple[str, ...]) -> str:
        # Only random(): its series is the same in every Python.
        return words[int(chance.random() * len(words))]

    tokens, labels = [], []
    for _ in range(COUNT):
        decides = 1 + int(chance.random() * (_OPINIONS - 1))
        words, label = ["[CLS]"], 0
        for place in range(_OPINIONS):
            if place:
                words.append(_BUT if place == decides else one_of(_JOINED))
            praises, turned = chance.random() < 0.5, chance.random() < _SHARE_TURNED
            adjectives = _PRAISE if praises else _BLAME
            words += ["the", one_of(_SUBJECTS), "was", one_of(_TURNED if turned else _PLAIN), one_of(adjectives)]
            if place == decides:
                label = int(praises != turned)
        tokens.append([number[word] for word in words])
        labels.append(label)
    return Sentences(tokens, labels)
