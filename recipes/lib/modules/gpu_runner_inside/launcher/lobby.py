"""Which ranks of a job step have come to its rendezvous. No answer grows with the number of ranks."""

from __future__ import annotations

_SHOWN = 8  # of the missing ranks


class Lobby:
    """The ranks that are there, of ``size``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        self._here = bytearray(size)
        self._missing: list[int] | None = None  # None where a rank has come since it was made

    @property
    def complete(self) -> bool:
        """Whether every rank is there."""
        return self.count == self.size

    def enter(self, name: bytes) -> bool:
        """Note that the rank of this number has come, again or for the first time; False where it is no rank."""
        if not (name.isdigit() and len(name) <= 9 and int(name) < self.size):
            return False
        rank = int(name)
        if not self._here[rank]:
            self._here[rank] = 1
            self.count += 1
            self._missing = None
        return True

    def missing(self) -> list[int]:
        """The first of the ranks that have not come, at most 8."""
        if self._missing is None:
            self._missing = []
            at = self._here.find(0)
            while at >= 0 and len(self._missing) < _SHOWN:
                self._missing.append(at)
                at = self._here.find(0, at + 1)
        return self._missing
