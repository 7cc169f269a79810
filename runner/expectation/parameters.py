"""The parameters of the cost model, and what is known of GPUs and models: parameters.yaml."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from runner.core import strict_yaml
from runner.model.expectation import Range

_FILE = Path(__file__).parent / "parameters.yaml"


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As ``Input``, without the name."""

    unit: str
    low: float
    value: float
    high: float
    source: str


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU model.

    Attributes:
        pattern: regular expression in the GPU's name.
        link: what connects the GPUs of a node. bus_gb_s: bus bandwidth of an allreduce inside it, GB/s.
    """

    pattern: str
    link: Literal["nvlink", "pcie"]
    bus_gb_s: Range
    source: str


class Gradients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's gradients.

    Attributes:
        parameters: their number.
        ready: (share of the backward pass, share of the bytes that is ready then), both rising to 1.
    """

    parameters: int
    ready: tuple[tuple[float, float], ...]


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one GPU is known to reach, images per second. ``precision``: the beginning of the recipe's word for it."""

    pattern: str
    model: str
    precision: str
    low: float
    value: float
    high: float
    source: str


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    parameters: dict[str, Parameter]
    gpus: tuple[Gpu, ...]
    models: dict[str, Gradients]
    rates: tuple[Rate, ...]

    def gpu(self, name: str) -> Gpu | None:
        """The GPU that a site's file calls so; None where nothing is known of it."""
        return next((each for each in self.gpus if re.search(each.pattern, name)), None)

    def rate(self, gpu: str, model: str, precision: str) -> Rate | None:
        """The rate of one GPU; None where none is known."""
        return next(
            (
                each
                for each in self.rates
                if re.search(each.pattern, gpu) and each.model == model and precision.startswith(each.precision)
            ),
            None,
        )


@cache
def load() -> Parameters:
    """The parameters as they are shipped."""
    return strict_yaml.load(_FILE, Parameters)
