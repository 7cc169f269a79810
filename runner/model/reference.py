"""References: figures that runs are held against, as a user's ``references.yaml`` has them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

_Value = Annotated[float, msgspec.Meta(gt=0.0, le=1e20)]
_Lower = Annotated[float, msgspec.Meta(gt=-1.0, le=0.0)]
_Upper = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}\Z")]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One figure, where it holds, and where it is from.

    Attributes:
        site, recipe, gpus: of the runs that it is for. options: of the recipe, which these runs must have, too.
        value: in ``unit``. lower, upper: how far a figure may lie from it, shares: -0.05 is 5 % below; without an
            upper one no figure is too high.
        source: a URL, a document, or a run's id. date: of that, YYYY-MM-DD.
    """

    site: _Text
    recipe: _Text
    gpus: Annotated[int, msgspec.Meta(ge=1)]
    value: _Value
    unit: Literal[
        "images/s", "samples/s", "tokens/s", "steps/s", "images/s/GPU", "samples/s/GPU", "tokens/s/GPU", "steps/s/GPU"
    ]
    lower: _Lower
    source: _Text
    date: _Date
    upper: _Upper | None = None
    options: dict[str, str | int | float | bool] = {}


class References(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    references: tuple[Reference, ...]
