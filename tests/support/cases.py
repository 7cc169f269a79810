"""One test of many small cases, each of which takes less time than a test of its own would."""

from collections.abc import Callable, Iterable
from typing import Any


def for_each(cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Calls a test with each case, a tuple as its arguments; all that fail are named, with what each of them says."""
    kept = [case if isinstance(case, tuple) else (case,) for case in cases]
    assert kept, "a test of no case tests nothing"

    def decorated(test: Callable[..., None]) -> Callable[[], None]:
        def each() -> None:
            failed: dict[str, Exception] = {}
            for case in kept:
                try:
                    test(*case)
                except Exception as error:
                    failed[", ".join(str(part)[:60] for part in case)] = error
            if failed:
                raise AssertionError("\n".join(f"{case}: {error!r}" for case, error in failed.items())) from next(
                    iter(failed.values())
                )

        each.__name__, each.__doc__, each.__module__ = test.__name__, test.__doc__, test.__module__
        return each

    return decorated
