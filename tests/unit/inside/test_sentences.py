"""Sentences to train on: equal everywhere, of both classes, and not to be classified by counting words."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

from gpu_runner_inside import sentences


def words_of(row: list[int]) -> list[str]:
    return [sentences.VOCABULARY[token] for token in row]


def test_sentences_are_equal_everywhere() -> None:
    found = sentences.drawn()
    assert (len(found.tokens), len(found.labels)) == (sentences.COUNT, sentences.COUNT)
    assert {len(row) for row in found.tokens} == {sentences.LENGTH}
    assert {word for row in found.tokens for word in words_of(row)} == set(sentences.VOCABULARY)
    assert hashlib.sha256(json.dumps([found.tokens, found.labels]).encode()).hexdigest()[:16] == "d91529412721767b"


def test_the_opinion_after_but_decides() -> None:
    found = sentences.drawn()
    for row, label in zip(found.tokens, found.labels, strict=True):
        words = words_of(row)
        assert (words[0], words.count("but")) == ("[CLS]", 1)
        *_, before, adjective = words[words.index("but") :][:6]
        turned = before in ("hardly", "never", "not", "rarely")
        praises = adjective in ("bright", "clever", "fine", "fresh", "good", "great", "lovely", "warm")
        assert label == int(praises != turned), " ".join(words)


def test_no_word_and_no_place_gives_the_class_away() -> None:
    """The best rule that sees one word anywhere, or one place, is right in less than 70 % of all reviews."""
    found = sentences.drawn()
    counts: Counter[tuple[int | None, int, int]] = Counter()
    for row, label in zip(found.tokens, found.labels, strict=True):
        counts.update((None, token, label) for token in set(row))
        counts.update((place, token, label) for place, token in enumerate(row))
    assert 0.48 < sum(found.labels) / len(found.labels) < 0.52
    for place, token in {(place, token) for place, token, _ in counts}:
        both = [counts[place, token, label] for label in (0, 1)]
        assert max(both) / sum(both) < 0.7, (place, sentences.VOCABULARY[token])
