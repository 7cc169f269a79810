"""Numbers for people: one form of each kind, in terminals, pages and messages. Pure.

Spaces inside a number are narrow and do not break, and a minus is a minus sign; ``runner.core.text.plain`` gives a
terminal what it has on its keyboard.
"""

from __future__ import annotations

from collections.abc import Callable

MINUS, NARROW, DASH = "\N{MINUS SIGN}", "\N{NARROW NO-BREAK SPACE}", "\N{EN DASH}"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def rate(value: float) -> str:
    """A rate in three to five digits: ``8.41``, ``148.2``, ``2 310``, ``36 900``."""
    if value == 0.0:
        return "0"
    if value < 10.0:
        return f"{value:.2f}"
    if value < 1000.0:
        return f"{value:.1f}"
    return f"{value:,.0f}".replace(",", NARROW)


def percent(share: float, digits: int = 1, *, signed: bool = False) -> str:
    """``92.4 %``, or ``+1.8 %`` if ``signed``; a share that rounds to 0 has no sign."""
    shown = f"{100.0 * share:.{digits}f}"
    is_zero = float(shown) == 0.0
    sign = "" if is_zero else MINUS if shown.startswith("-") else "+" if signed else ""
    return f"{sign}{shown.lstrip('-')}{NARROW}%"


def change(share: float) -> str:
    """A relative change: ``+1.80 %``."""
    return percent(share, 2, signed=True)


def span(low: float | None, high: float | None, write: Callable[[float], str] = percent) -> str:
    """An interval: ``91.0 % to 93.8 %``; empty where there is none."""
    return "" if low is None or high is None else f"{write(low)} to {write(high)}"


def with_span(value: float, low: float | None, high: float | None, write: Callable[[float], str] = percent) -> str:
    """A value with its interval, where it has one: ``92.4 % (91.0 % to 93.8 %)``."""
    interval = span(low, high, write)
    return f"{write(value)} ({interval})" if interval else write(value)


def seconds(value: float) -> str:
    """``412 ms``, ``3.21 s``."""
    return f"{1000.0 * value:.3g} ms" if value < 1.0 else f"{value:.3g} s"


def age(elapsed_s: float) -> str:
    """``45 s``, ``12 min``, ``3 h``, ``2 d``: whole units, rounded down."""
    for length, unit in _UNITS:
        if elapsed_s >= length:
            return f"{int(elapsed_s // length)} {unit}"
    return f"{int(max(0.0, elapsed_s))} s"
