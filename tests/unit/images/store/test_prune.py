"""What pruning takes: only what all limits allow, the longest idle first, and never what is needed."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from runner.images.store.store import Candidate, Limits, to_remove

DAY_S = 86400.0


def image(
    name: str, *, size: int = 10, age_d: float = 10, idle_d: float = 5, used: bool = True, needed: bool = False
) -> Candidate:
    return Candidate(Path(name), size, age_d * DAY_S, idle_d * DAY_S, used, needed)


def names(images: tuple[Candidate, ...]) -> list[str]:
    return [str(image.path) for image in images]


def test_all_limits_must_hold() -> None:
    images = [image("old", used=False), image("new", age_d=1, used=False), image("used"), image("held", needed=True)]
    assert names(to_remove(images, Limits(older_than_s=5 * DAY_S))) == ["old", "used"]
    assert names(to_remove(images, Limits(unused=True))) == ["new", "old"]
    assert names(to_remove(images, Limits(older_than_s=5 * DAY_S, unused=True))) == ["old"]


def test_the_longest_idle_go_until_the_rest_fits() -> None:
    images = [image("a", idle_d=1), image("b", idle_d=9), image("c", idle_d=3), image("d", idle_d=20, needed=True)]
    assert names(to_remove(images, Limits(max_bytes=40))) == []
    assert names(to_remove(images, Limits(max_bytes=39))) == ["b"]
    assert names(to_remove(images, Limits(max_bytes=15))) == ["b", "c", "a"]


def test_an_image_from_the_future_is_not_old() -> None:
    assert to_remove([image("future", age_d=-100)], Limits(older_than_s=0)) == ()


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.integers(0, 99).map(lambda number: Path(str(number))),
        st.integers(0, 100),
        st.floats(-1e6, 1e6),
        st.floats(0, 1e6),
        st.booleans(),
        st.booleans(),
    )
)


@given(CANDIDATES, st.none() | st.floats(0, 1e6), st.booleans(), st.none() | st.integers(0, 1000))
def test_what_is_needed_stays_whatever_the_options(
    images: list[Candidate], older_than_s: float | None, unused: bool, max_bytes: int | None
) -> None:
    going = to_remove(images, Limits(older_than_s, unused, max_bytes))
    assert not any(gone.needed for gone in going)
    assert not (unused and any(gone.used for gone in going))
    left = sum(image.size_bytes for image in images) - sum(gone.size_bytes for gone in going)
    if max_bytes is not None and going:
        assert left + going[-1].size_bytes > max_bytes
