"""Data to train on that is drawn: equal everywhere, and not to be learnt by counting."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter

import pytest
from gpu_runner_inside import digits, sentences


def test_drawn_digits_are_equal_everywhere() -> None:
    drawn = digits.drawn()
    assert (len(drawn.images), len(drawn.labels)) == (digits.COUNT, digits.COUNT)
    assert {len(image) for image in drawn.images} == {digits.SIDE**2}
    assert all(0.0 <= value <= 1.0 for image in drawn.images for value in image)
    assert set(drawn.labels[: digits.TRAINING]) == set(range(10))
    assert set(drawn.labels[digits.TRAINING :]) == set(range(10))
    rounded = json.dumps([[round(value, 6) for value in image] for image in drawn.images] + [drawn.labels])
    assert hashlib.sha256(rounded.encode()).hexdigest()[:16] == "9039dd5681c8548d"


def test_without_scikit_learn_digits_are_drawn_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "drawn" in digits.load("auto").origin
    with pytest.raises(ImportError, match=r"sklearn\.datasets"):
        digits.load("digits")


def words_of(row: list[int]) -> list[str]:
    return [sentences.VOCABULARY[token] for token in row]


def test_sentences_are_equal_everywhere() -> None:
    drawn = sentences.drawn()
    assert (len(drawn.tokens), len(drawn.labels)) == (sentences.COUNT, sentences.COUNT)
    assert {len(row) for row in drawn.tokens} == {sentences.LENGTH}
    assert {word for row in drawn.tokens for word in words_of(row)} == set(sentences.VOCABULARY)
    assert hashlib.sha256(json.dumps([drawn.tokens, drawn.labels]).encode()).hexdigest()[:16] == "d91529412721767b"


def test_the_opinion_after_but_decides() -> None:
    drawn = sentences.drawn()
    for row, label in zip(drawn.tokens, drawn.labels, strict=True):
        words = words_of(row)
        assert (words[0], words.count("but")) == ("[CLS]", 1)
        *_, before, adjective = words[words.index("but") :][:6]
        turned = before in ("hardly", "never", "not", "rarely")
        praises = adjective in ("bright", "clever", "fine", "fresh", "good", "great", "lovely", "warm")
        assert label == int(praises != turned), " ".join(words)


def test_no_word_and_no_place_gives_the_class_away() -> None:
    """The best rule that sees one word anywhere, or one place, is right in less than 70 % of all reviews."""
    drawn = sentences.drawn()
    counts: Counter[tuple[int | None, int, int]] = Counter()
    for row, label in zip(drawn.tokens, drawn.labels, strict=True):
        counts.update((None, token, label) for token in set(row))
        counts.update((place, token, label) for place, token in enumerate(row))
    assert 0.48 < sum(drawn.labels) / len(drawn.labels) < 0.52
    for place, token in {(place, token) for place, token, _ in counts}:
        both = [counts[place, token, label] for label in (0, 1)]
        assert max(both) / sum(both) < 0.7, (place, sentences.VOCABULARY[token])
