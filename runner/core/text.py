"""Words and numbers for people: one form of each, in terminals, pages and messages. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

MINUS, NARROW, DASH = "\N{MINUS SIGN}", "\N{NARROW NO-BREAK SPACE}", "\N{EN DASH}"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def rate(value: float) -> str:
    """A rate in three to five digits: ``0.0149``, ``8.41``, ``148.2``, ``2 310``, ``36 900``."""
    if value == 0.0:
        return "0"
    if value < 10.0:
        return f"{value:.{decimals(value)}f}"
    if value < 1000.0:
        return f"{value:.1f}"
    return f"{value:,.0f}".replace(",", NARROW)


def decimals(value: float) -> int:
    """Of a rate below ten: those that show three digits of it."""
    return max(2, 2 - math.floor(math.log10(value))) if 0.0 < value < math.inf else 2


def percent(share: float, digits: int = 1, *, signed: bool = False) -> str:
    """``92.4 %``, or ``+1.8 %`` if ``signed``; a share that rounds to 0 has no sign."""
    shown = f"{100.0 * share:.{digits}f}"
    is_zero = float(shown) == 0.0
    sign = "" if is_zero else MINUS if shown.startswith("-") else "+" if signed else ""
    return f"{sign}{shown.lstrip('-')}{NARROW}%"


def efficiency(share: float) -> str:
    """``92.4 %``; of less than 2.5 % three digits: ``0.231 %``."""
    return percent(share, decimals(100.0 * abs(share)) if 0.0 < abs(share) < 0.025 else 1)


def change(share: float) -> str:
    """A relative change: ``+1.80 %``."""
    return percent(share, 2, signed=True)


def span(low: float | None, high: float | None, write: Callable[[float], str] = efficiency) -> str:
    """An interval: ``91.0 % to 93.8 %``; empty where there is none."""
    return "" if low is None or high is None else f"{write(low)} to {write(high)}"


def with_span(value: float, low: float | None, high: float | None, write: Callable[[float], str] = efficiency) -> str:
    """A value with its interval, where it has one: ``92.4 % (91.0 % to 93.8 %)``."""
    interval = span(low, high, write)
    return f"{write(value)} ({interval})" if interval else write(value)


def seconds(value: float) -> str:
    """``412 ms``, ``3.21 s``, ``1234 s``."""
    if value < 0.9995:  # which three digits round to a second
        return f"{1000.0 * value:.3g} ms"
    return f"{value:.3g} s" if value < 999.5 else f"{value:.0f} s"


def age(elapsed_s: float) -> str:
    """``45 s``, ``12 min``, ``3 h``, ``2 d``: whole units, rounded down."""
    for length, unit in _UNITS:
        if elapsed_s >= length:
            return f"{int(elapsed_s // length)} {unit}"
    return f"{int(max(0.0, elapsed_s))} s"


def duration(elapsed_s: float) -> str:
    """``45 s``, ``20 min``, ``1 h 30 min``, ``2 d 4 h``: two units at most, rounded down."""
    left, parts = int(max(0.0, elapsed_s)), list[str]()
    for length, unit in (*_UNITS, (1, "s")):
        number, left = divmod(left, length)
        parts.append(f"{number} {unit}" if number else "")
    first = next((place for place, part in enumerate(parts) if part), 0)
    return " ".join(filter(None, parts[first : first + 2])) or "0 s"


def clock_s(clock: str) -> int | None:
    """Seconds of Slurm's ``[days-]hours:minutes:seconds`` and PBS's ``hours:minutes:seconds``; None for no limit."""
    parts = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+)(?::(\d+))?", clock)
    if not parts:
        return None
    days, first, second, third = (int(part or 0) for part in parts.groups())
    if parts[4] is None and not parts[1]:
        return first * 60 + second
    return ((days * 24 + first) * 60 + second) * 60 + third


def printable(text: str, keep: str = "") -> str:
    """``text`` with what is no printable character escaped: control characters, marks of the direction of writing.

    What a record, a log, a file or a host's name holds can then change neither a terminal nor the order of a line.

    Args:
        keep: characters that stay, such as the end of a line.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each in keep or each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


# Colours and weights of a terminal (SGR, ECMA-48), and none that hide what is written.
_COLOUR = re.compile(
    r"(\x1b\[(?:(?:[34]8[;:](?:5[;:]\d{1,3}|2(?:[;:]\d{0,3}){3,4})|0?[0-79]|[1-9]\d|10[0-7])(?:;|(?=m)))*m)"
)


def coloured(text: str) -> str:
    """``printable`` but for colours, which end with the text, and tabulators."""
    parts = _COLOUR.split(text)
    shown = "".join(part if at % 2 else printable(part, keep="\t") for at, part in enumerate(parts))
    return f"{shown}\x1b[0m" if len(parts) > 1 else shown


def plain(text: str, keep: str = "") -> str:
    """``text`` for a terminal: printable, and numbers as they are typed: ``36900``, ``-3.1 %``."""
    ungrouped = re.sub("(?<=[0-9])\N{NARROW NO-BREAK SPACE}(?=[0-9])", "", text)
    return printable(ungrouped.replace("\N{NARROW NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-"), keep)


def counted(number: int, noun: str) -> str:
    """``1 node``, ``16 nodes``, ``3 launches``."""
    plural = f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun[:-1]}ies" if noun.endswith("dy") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def gpus_text(gpus: int) -> str:
    """``1 GPU``, ``16 GPUs``."""
    return counted(gpus, "GPU")


def shape_text(gpus: int, nodes: int, starts: int, starter: str = "") -> str:
    """``8 ranks on 2 nodes``; where each start has several GPUs, and ranks of its own: ``8 GPUs on 2 nodes, 2 starts``.

    Args:
        starter: the program that starts the ranks then; empty where it is not known.
    """
    if gpus <= starts:
        return f"{counted(starts, 'rank')} on {counted(nodes, 'node')}"
    by = f" of {starter}" if starter else ""
    return f"{gpus_text(gpus)} on {counted(nodes, 'node')}, {counted(starts, 'start')}{by}"


def first_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """``a, b, c``; of more than ``most`` the first: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{more}"


def settings_text(settings: Iterable[tuple[str, str]]) -> str:
    """``batch-size=128, precision=fp32``; empty for none."""
    return ", ".join(f"{name}={value}" for name, value in settings)


def point_text(gpus: int, settings: Iterable[tuple[str, str]], between: str = ", ") -> str:
    """``16 GPUs, batch-size=128``; of a point without settings its size alone."""
    return between.join(filter(None, (gpus_text(gpus), settings_text(settings))))


def instead(wrong: str, names: Iterable[str], otherwise: str) -> str:
    """``did you mean 'x'?``, or ``otherwise`` where no name is near."""
    near = nearest(wrong, names)
    return f"did you mean {near!r}?" if near else otherwise


def nearest(name: str, others: Iterable[str], *, least: float = 0.6) -> str:
    """The most similar of the others; empty where none is as similar as ``least``, a ratio of difflib."""
    import difflib  # every call of this program comes here, and few have something to suggest

    return next(iter(difflib.get_close_matches(name, list(others), n=1, cutoff=least)), "")
