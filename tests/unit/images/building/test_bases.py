"""Which of NVIDIA's bases a driver carries."""

from __future__ import annotations

import pytest

from runner.core.errors import RefusedError
from runner.images.building.bases import BASES, newest
from runner.images.building.build import DEFAULT_BASES


@pytest.mark.parametrize(
    ("framework", "driver", "tag", "how"),
    [
        ("pytorch", "570.86.10", "25.02-py3", "natively"),
        ("pytorch", "580.65.06", "25.02-py3", "natively"),
        ("tensorflow", "535.104.05", "25.02-tf2-py3", "by its compat package"),
        ("pytorch", "535.54.03", "23.10-py3", "natively"),
        ("pytorch", "530.30.02", "23.03-py3", "natively"),
        ("tensorflow", "525.105.17", "25.02-tf2-py3", "by its compat package"),
        ("tensorflow", "515.65.01", "23.03-tf2-py3", "by its compat package"),
        ("tensorflow", "470.57.02", "25.02-tf2-py3", "by its compat package"),
        ("pytorch", "450.51.06", "23.10-py3", "by its compat package"),
    ],
)
def test_the_newest_base_that_a_driver_carries(framework: str, driver: str, tag: str, how: str) -> None:
    chosen, why = newest(framework, driver, "here")
    assert chosen.reference == f"nvcr.io/nvidia/{framework}:{tag}"
    assert how in why
    assert driver in why


def test_a_site_that_does_not_say_gets_the_newest_with_a_note() -> None:
    chosen, why = newest("pytorch", "", "there")
    assert chosen.reference == DEFAULT_BASES["pytorch"]
    assert "there does not say" in why


@pytest.mark.parametrize("driver", ["418.87", "none"])
def test_a_driver_that_carries_nothing_is_refused(driver: str) -> None:
    with pytest.raises(RefusedError) as caught:
        newest("pytorch", driver, "old")
    assert "hardware.driver" in caught.value.where


def test_the_table_is_newest_first_and_holds_the_defaults() -> None:
    for framework, default in DEFAULT_BASES.items():
        releases = [base.release for base in BASES if base.framework == framework]
        assert releases == sorted(releases, reverse=True)
        assert default in {base.reference for base in BASES}
