"""Data to train on that is drawn: equal everywhere, and not to be learnt by counting."""

import hashlib
import json
import sys

import pytest
from gpu_runner_inside import digits, sentences


def test_drawn_digits_are_equal_everywhere() -> None:
    drawn = digits.drawn()
    assert (len(drawn.images), len(drawn.labels)) == (digits.COUNT, digits.COUNT)
    rounded = json.dumps([[round(value, 6) for value in image] for image in drawn.images] + [drawn.labels])
    assert hashlib.sha256(rounded.encode()).hexdigest()[:16] == "9039dd5681c8548d"


def test_without_scikit_learn_digits_are_drawn_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "drawn" in digits.load("auto").origin
    with pytest.raises(ImportError, match=r"sklearn\.datasets"):
        digits.load("digits")


def test_sentences_are_equal_everywhere() -> None:
    drawn = sentences.drawn()
    assert (len(drawn.tokens), len(drawn.labels)) == (sentences.COUNT, sentences.COUNT)
    assert hashlib.sha256(json.dumps([drawn.tokens, drawn.labels]).encode()).hexdigest()[:16] == "d91529412721767b"
