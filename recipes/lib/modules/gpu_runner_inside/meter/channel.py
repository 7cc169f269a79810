"""How the meters of all ranks agree, beside the program's own collectives, so that a meter never makes one wait for
ever: each call ends within its patience, and a meter that gave up, or whose program ended, lets the others know.

Values are JSON. O(N) messages for N ranks: each rank leaves its value, rank 0 reads them all and leaves one answer.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from typing import Any, Protocol

from gpu_runner_inside.launcher.rendezvous import Store
from gpu_runner_inside.meter import clocks

PATIENCE_VARIABLE = "RUNNER_METER_PATIENCE_S"
_PATIENCE_S = 120.0
_LOOK_S = 2.0  # between two looks at whether the other has left
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.0005, 0.02


class GaveUpError(Exception):
    """The ranks cannot measure together; the text says why."""


class KeyValue(Protocol):
    """Values that every rank can read."""

    def put(self, key: str, value: bytes) -> None:
        """Set it."""

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """It, waiting so long for it; None where it did not come."""


class ByRendezvous:
    """The launcher's own store of the job step."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        self._store.put("meter", _part(key), value)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        return self._store.get("meter", _part(key), timeout_s)


def _part(key: str) -> str:
    """A key as one part of the path that the rendezvous takes."""
    return key.replace("/", ".")


class ByTorch:
    """The store by which torch.distributed met, where the ranks are started by torchrun and not by our launcher."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        self._store.set(f"runner-meter/{key}", value)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        # Asked again and again: a waiting call would hold up torch's own threads at the same store.
        until, pause_s = clocks.monotonic() + timeout_s, _LEAST_PAUSE_S
        while not self._store.check([f"runner-meter/{key}"]):
            if clocks.monotonic() >= until:
                return None
            clocks.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)
        return bytes(self._store.get(f"runner-meter/{key}"))


def _patience_s(stated: str) -> float:
    """Seconds that a rank waits for another one.

    Raises:
        GaveUpError: what is stated is no such number.
    """
    if not stated:
        return _PATIENCE_S
    with suppress(ValueError):
        if 0.0 < float(stated) < math.inf:
            return float(stated)
    raise GaveUpError(
        f"{PATIENCE_VARIABLE}={stated!r} is no number of seconds above 0; fix: --env {PATIENCE_VARIABLE}=300"
    )


class Channel:
    """This rank among the others.

    Args:
        values: None for a world of one, which needs none.
        life: tells this meter's values from those of an earlier one of the same job.

    Raises:
        GaveUpError: the variable that states the patience is no number.
    """

    def __init__(self, rank: int, size: int, values: KeyValue | None, life: str) -> None:
        self.rank, self.size = rank, size
        self._values, self._life = values, life
        self._patience_s = _patience_s(os.environ.get(PATIENCE_VARIABLE) or "")

    def gather(self, name: str, value: Any) -> list[Any]:
        """Every rank's value on rank 0, by rank; on the others a list of nothing. All of them leave it together.

        Raises:
            GaveUpError: a rank did not come in time, or has ended.
        """
        if self._values is None:
            return [value]
        try:
            if self.rank != 0:
                self._put(f"{name}/{self.rank}", value)
                self._wait(f"{name}/all", 0)
                return []
            found = [value]
            for rank in range(1, self.size):
                found.append(self._wait(f"{name}/{rank}", rank))
            self._put(f"{name}/all", None)
            return found
        except OSError as error:
            raise GaveUpError(f"the ranks' meters cannot reach each other: {error}") from error
        except RuntimeError as error:  # torch's store, whose server has ended
            raise GaveUpError(f"the ranks' meters cannot reach each other: {str(error).splitlines()[0]}") from error

    def agreed(self, name: str, value: float) -> float:
        """Rank 0's value, on all ranks; raises as ``gather``."""
        if self._values is None:
            return value
        try:
            if self.rank == 0:
                self._put(name, value)
                return value
            return float(self._wait(name, 0))
        except (OSError, RuntimeError) as error:
            raise GaveUpError(f"the ranks' meters cannot reach each other: {error}") from error

    def leave(self, why: str) -> None:
        """Tell the others that this rank's meter takes no further part. Never raises."""
        if self._values is None:
            return
        try:
            self._values.put(f"{self._life}/left/{self.rank}", why.encode())
        except Exception:  # the others find out by themselves
            return

    def _put(self, name: str, value: Any) -> None:
        assert self._values is not None
        self._values.put(f"{self._life}/{name}", json.dumps(value).encode())

    def _wait(self, name: str, rank: int) -> Any:
        assert self._values is not None
        until = clocks.monotonic() + self._patience_s
        while True:
            value = self._values.get(f"{self._life}/{name}", min(_LOOK_S, max(until - clocks.monotonic(), 0.0)))
            if value is not None:
                return json.loads(value)
            left = self._values.get(f"{self._life}/left/{rank}", 0.0)
            if left is not None:
                raise GaveUpError(f"rank {rank} left: {left.decode(errors='replace')}")
            if clocks.monotonic() >= until:
                raise GaveUpError(
                    f"rank {rank} did not come to the same step within {self._patience_s:g} s: every rank must do the "
                    "same number of steps"
                )
