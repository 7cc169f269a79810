"""What ``result`` is in the JSON of each command, and the JSON Schema of all of it (docs/json-schema.json)."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import click
import msgspec

from runner.box import Box
from runner.cli.quickstart import Taken
from runner.images.building.build import BuiltImage
from runner.images.building.without_engine import Built
from runner.images.store.stored_image import StoredImage
from runner.jobs.differences import Difference
from runner.model import output
from runner.model.expectation import Compared, Expectation
from runner.model.image import Environment
from runner.model.output import SCHEMA, Document
from runner.model.report import Report
from runner.model.request import Recipe
from runner.model.site import Site
from runner.model.study import PlannedStudy, StudyCancellation, StudyFacts
from runner.model.verdict import ProofRecord
from runner.preparation.new_recipe import UseAtSite
from runner.preparation.site_check import SiteReport
from runner.setup.cleaning import Cleaned
from runner.sites.loader import Unknown
from runner.sites.proofs import Proven


class ImageRow(msgspec.Struct, frozen=True):
    """An image of the store; one without a readable sidecar has only ``path``, ``size_bytes`` and ``problem``.

    Attributes:
        format: such as ``squashfs zstd``, ``SIF``. problem: why it is not whole; empty where it is.
        runs: ids of your runs that used it, the newest first. owner: who put it into the store, where that is
            neither you, nor root, nor the store's owner; else empty.
    """

    reference: str
    path: str
    digest: str
    size_bytes: int
    format: str
    age_s: int | None
    problem: str
    runs: list[str]
    owner: str


class ShownImage(StoredImage, frozen=True, kw_only=True):
    """A stored image. ``problem``: why it is not whole; empty where it is. ``owner``: as in the list, or its name's."""

    problem: str
    owner: str


class EditedImage(msgspec.Struct, frozen=True):
    """The image that an edit has stored."""

    reference: str
    path: str
    digest: str


class VerifiedImage(msgspec.Struct, frozen=True):
    """An image whose every byte was checked. ``broken``: what is wrong; empty where it is good. ``owner``: as shown."""

    reference: str
    path: str
    broken: str
    owner: str


class WrittenJob(msgspec.Struct, frozen=True):
    """A directory from which a job can be submitted by hand, and the command that does it."""

    directory: str
    command: str


class PrunedImages(msgspec.Struct, frozen=True):
    """Files that were removed, or would be; their size; files that runs need, and that were kept."""

    removed: list[str]
    bytes: int
    needed: list[str]
    dry_run: bool


class ConvertedImage(StoredImage, frozen=True, kw_only=True):
    """A stored image. ``made``: now, in ``seconds``; ``moved_from``: the digest that its name stood for before."""

    made: bool
    seconds: float
    moved_from: str


class DefinitionFile(msgspec.Struct, frozen=True):
    """An Apptainer definition file, and where it was written; null for nowhere."""

    definition: str
    file: str | None


class MadeEnvironment(Environment, frozen=True, kw_only=True):
    """An environment that was made now or before, in ``seconds``; ``root``: its directory."""

    root: str
    up_to_date: bool
    seconds: float


class EnvironmentScript(msgspec.Struct, frozen=True):
    """What a dry run of ``env create`` would run, and where the environment would be."""

    root: str
    script: str


class CollectedPackages(msgspec.Struct, frozen=True):
    """Packages in a directory, and for which environments they are."""

    directory: str
    size_bytes: int
    purpose: str
    files: list[str]


class CheckedEnvironment(msgspec.Struct, frozen=True):
    """An environment whose Horovod was tested: what the test printed, and by which operations it can reduce."""

    environment: str
    proven: list[str]
    operations: list[str]


class EnvironmentRow(msgspec.Struct, frozen=True):
    """An environment, or what is left of one that is not whole."""

    root: str
    whole: bool
    environment: Environment | None


class Named(msgspec.Struct, frozen=True):
    """One of a list: its name, and what it is."""

    name: str
    description: str


class ShownRecipe(Recipe, frozen=True, kw_only=True):
    """A recipe, its directory, and how it is submitted to each site."""

    directory: str
    sites: list[UseAtSite]


class NewRecipe(msgspec.Struct, frozen=True):
    """A recipe that was made. ``copied``: files of the program; ``left_out``: what was not copied -> why."""

    directory: str
    copied: list[str]
    left_out: dict[str, str]
    recipe: Recipe


class ShownSite(Site, frozen=True, kw_only=True):
    """A site, and what is proven on its GPUs; ``slurm`` and ``pbs`` are ``scheduler_settings`` of these schedulers."""

    proven_on_gpus: Proven
    slurm: dict[str, Any] = {}
    pbs: dict[str, Any] = {}


class Comparison(msgspec.Struct, frozen=True):
    """What differs between two runs, given by their ids; empty for equal ones."""

    first: str
    second: str
    differences: tuple[Difference, ...]


class DetectedSite(msgspec.Struct, frozen=True):
    """A site file for the cluster that answers here, where it was written (null: nowhere), and what it leaves open."""

    file: str | None
    text: str
    scheduler: str
    unknown: tuple[Unknown, ...]


class CheckedStep(msgspec.Struct, frozen=True):
    """One of the eight steps. ``place``: its line, or file and line; ``fix``: with a line of code, or empty."""

    step: int
    name: str
    state: Literal["ok", "missing", "wrong", "cannot tell"]
    place: str
    reason: str
    fix: str


class CheckedScript(msgspec.Struct, frozen=True):
    """A training script that was read. ``done_by``: a framework that does the steps by itself; empty for none."""

    file: str
    way: Literal["horovod", "ddp", "none"]
    done_by: str
    steps: list[CheckedStep]


class BoxDown(msgspec.Struct, frozen=True):
    """A box that is down now, after ``seconds``; ``was_up``: it ran before."""

    name: str
    was_up: bool
    seconds: float


class ServedImage(msgspec.Struct, frozen=True):
    """The squashfs that Pyxis is given. ``by``: path of the other importer; empty for the store."""

    path: str
    by: str


class Released(msgspec.Struct, frozen=True):
    """Nothing is left of what ``by``, the path of the other importer, has made; empty where there is none."""

    by: str


class Quickstart(msgspec.Struct, frozen=True):
    """The steps that were taken, up to the first that failed."""

    steps: list[Taken]


# Every command with --json. A result may always be null, where an error left none.
RESULTS: dict[str, tuple[Any, ...]] = {
    "build": (BuiltImage, Built, DefinitionFile),
    "convert": (ConvertedImage,),
    "images list": (list[ImageRow],),
    "images show": (ShownImage,),
    "images edit": (EditedImage,),
    "images verify": (list[VerifiedImage],),
    "images prune": (PrunedImages,),
    "submit": (output.RunFacts, output.Preparation, WrittenJob, output.ScriptCheck),
    "run": (output.RunFacts, output.Preparation),
    "scale": (StudyFacts, PlannedStudy),
    "status": (output.RunFacts, output.RunList, StudyFacts),
    "wait": (output.RunFacts, StudyFacts, output.WaitedFor),
    "logs": (list[output.LogText],),
    "cancel": (output.Cancellation, StudyCancellation, output.Cancellations),
    "show": (output.ShownRun,),
    "rerun": (output.RunFacts, output.Preparation),
    "diff": (Comparison,),
    "report": (Report,),
    "compare": (Compared,),
    "export": (output.ExportedRuns, output.MadeBundle),
    "verify": (output.VerifiedBundle,),
    "box up": (Box,),
    "box down": (BoxDown,),
    "box status": (list[Box],),
    "box quickstart": (Quickstart,),
    "quickstart": (Quickstart,),
    "box clean": (Cleaned,),
    "clean": (Cleaned,),
    "images importer get": (ServedImage,),
    "images importer release": (Released,),
    "importer get": (ServedImage,),
    "importer release": (Released,),
    "recipe expect": (Expectation,),
    "expect": (Expectation,),
    "prove": (ProofRecord,),
    "recipe list": (list[Named],),
    "recipe show": (ShownRecipe,),
    "recipe new": (NewRecipe,),
    "recipe check": (CheckedScript,),
    "site list": (list[Named],),
    "site show": (ShownSite,),
    "site detect": (DetectedSite,),
    "site check": (SiteReport,),
    "env create": (MadeEnvironment, EnvironmentScript),
    "env wheels": (CollectedPackages,),
    "env check": (CheckedEnvironment,),
    "env list": (list[EnvironmentRow],),
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of what every command prints with ``--json``."""
    commands = {results: [name for name in RESULTS if RESULTS[name] == results] for results in RESULTS.values()}
    types = [Document, *(each for results in commands for each in results)]
    refs, definitions = msgspec.json.schema_components(
        types, schema_hook=lambda _kind: {"type": "string"}, ref_template="#/$defs/{name}"
    )
    envelope, *others = refs
    of_commands: list[Any] = []
    for results, names in commands.items():
        kinds = [others.pop(0) for _ in results]
        own = {"enum": names} if names[1:] else {"const": names[0]}
        properties = {"command": own, "result": {"anyOf": [*kinds, {"type": "null"}]}}
        of_commands.append({"properties": properties})
    rest = {"command": {"not": {"enum": list(RESULTS)}}, "result": {"type": "null"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        "allOf": [envelope],
        "anyOf": [*of_commands, {"properties": rest}],
        "$defs": {name: _tidy(definition) for name, definition in sorted(definitions.items())},
    }


def _tidy(definition: dict[str, Any]) -> dict[str, Any]:
    """Descriptions as they are read, whatever this Python has done to the indentation of docstrings."""
    if "description" not in definition:
        return definition
    return definition | {"description": inspect.cleandoc(definition["description"])}


@click.command()
def schema() -> None:
    """Print the JSON Schema of what every command prints with --json."""
    import json

    click.echo(json.dumps(json_schema(), indent=1))
