"""Digits to train on where scikit-learn is not installed: many, all ten, equal everywhere."""

from __future__ import annotations

import hashlib
import json
import sys

import pytest
from gpu_runner_inside import digits


def test_drawn_digits_are_equal_everywhere() -> None:
    found = digits.drawn()
    assert (len(found.images), len(found.labels)) == (digits.COUNT, digits.COUNT)
    assert {len(image) for image in found.images} == {digits.SIDE**2}
    assert all(0.0 <= value <= 1.0 for image in found.images for value in image)
    assert set(found.labels[: digits.TRAINING]) == set(range(10))
    assert set(found.labels[digits.TRAINING :]) == set(range(10))
    rounded = json.dumps([[round(value, 6) for value in image] for image in found.images] + [found.labels])
    assert hashlib.sha256(rounded.encode()).hexdigest()[:16] == "9039dd5681c8548d"


def test_without_scikit_learn_digits_are_drawn_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "drawn" in digits.load("auto").origin
    with pytest.raises(ImportError, match=r"sklearn\.datasets"):
        digits.load("digits")
