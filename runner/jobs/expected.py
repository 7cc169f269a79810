"""What a recipe should reach at a site: from site, recipe and runs to the inputs of the cost model."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from runner.core import files, ownership
from runner.core.errors import RefusedError, UsageError
from runner.core.text import counted, instead
from runner.expectation import network
from runner.expectation.expect import Machine, Parameter, Parameters, Placement, Workload, load, names, point
from runner.expectation.network import Curve, too_small
from runner.jobs import figure
from runner.jobs.collect import Evidence
from runner.jobs.directory import Run
from runner.model.expectation import Expectation, ExpectedPoint, Input, Signs
from runner.model.figure import in_words
from runner.model.records import AllreduceRecord
from runner.model.request import Option, Recipe, transport_of
from runner.model.site import Site
from runner.planning.options import options_of, values
from runner.planning.placement import place
from runner.recipes import loader
from runner.recipes.loader import read_recipe

MODELLED = ("horovod-pytorch", "horovod-tensorflow", "ddp-pytorch")
_SHARDED = ("fsdp-pytorch",)  # other collectives than allreduces carry their parameters and gradients
ASSUMABLE = (
    *("one-gpu-images-per-s", "gradient-mb", "forward-share", "spread", "start-us", "hop-inside-us", "hop-between-us"),
    *("inside-gb-s", "between-gb-s", "tree-share", "cycle-ms", "coordination-us", "fusion-mb", "bucket-mb"),
    *("inside-share", "between-share", "curve-spread", "input-images-per-s"),
)
_SHARES = ("forward-share", "tree-share", "inside-share", "between-share")
_MAY_BE_ZERO = ("spread", "start-us", "hop-inside-us", "hop-between-us", "cycle-ms", "coordination-us", "forward-share")
_MOST = 1e12
_MOST_BYTES = 1 << 24  # of a file of nccl-tests
_LEAST_RATE = 1e-6
_DECIDE = ("model", "batch-size", "image-size", "precision", "channels-last", "compile", "mode")
_GIVEN = "given"


@dataclass(frozen=True)
class OneGpu:
    """What one GPU alone does: images per second, with its interval; ``settings``: of the run that measured it."""

    images_per_s: float
    low: float
    high: float
    source: str
    settings: tuple[tuple[str, str], ...] = ()


def expect(
    site: Site,
    recipe: str | Recipe,
    settings: Sequence[tuple[str, str]],
    gpus: Sequence[int],
    one_gpu: OneGpu | None = None,
    curve: Curve | None = None,
    assumed: Mapping[str, tuple[float, float, float]] | None = None,
    *,
    nodes: int | None = None,
    by_mpi: bool = False,
) -> Expectation:
    """The expectation for each number of GPUs.

    Args:
        recipe: its name or folder, or itself. settings: of its options, over the recipe's and the site's.
        one_gpu: None for a published rate of the site's GPU.
        assumed: input -> (low, value, high), in place of what is known of it.
        nodes: of each point; None for the fewest. by_mpi: Horovod coordinates by MPI.

    Raises:
        UsageError: an option, a number or a name is not valid.
        RefusedError: nothing can be expected: no GPUs, a fact is missing, or a recipe that the model does not cover.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read_recipe(recipe).recipe
    given = dict(assumed or {})
    check_assumptions(given)
    if site.device == "cpu" or site.demonstration:  # ranks that share processors tell nothing of other machines
        why = site.demonstration or "its ranks compute on processors"
        raise RefusedError(
            f"nothing is expected of the site {site.name}: {why}", where="--site", fix="name a site with GPUs"
        )
    chosen = values(recipe, site.options.get(recipe.name, {}), settings)
    known = _Known(site=site, chosen=chosen, parameters=load(), one_gpu=one_gpu, given=given, by_mpi=by_mpi)
    work, shown = _workload(recipe, known)
    if curve is not None and curve.nodes is None:  # the fewest
        curve = replace(curve, nodes=-(-curve.ranks // max(1, site.node.gpus)))
    inputs: dict[str, Input] = {}
    points: list[ExpectedPoint] = []
    machine = Machine(site.node.gpus, site.fabric.adapters if site.fabric else None)
    for count in dict.fromkeys(gpus):
        ranks = place(count, nodes, site.node)
        placement = Placement(count, len(ranks), max(ranks))
        wanted = names(placement, work, curve, dict.fromkeys(given, 0.0))
        for name in wanted:
            if name not in inputs:
                inputs[name] = known.input(name, placement.nodes)
        made = point(placement, machine, work, [inputs[name] for name in wanted], curve)
        why = known.parameters.no_alarm(site.node.gpu_model, len(ranks)) if count > 1 else ""
        points.append(msgspec.structs.replace(made, no_alarm=why))
    notes = [f"{name} is given, and no point needs it" for name in given if name not in inputs]
    return Expectation(
        site.name,
        recipe.name,
        shown,
        tuple(points),
        tuple(inputs.values()),
        (*_notes(curve, points, one_gpu, inputs), *notes),
    )


def check_assumptions(given: Mapping[str, tuple[float, float, float]]) -> None:
    """Refuse names that are no input, and numbers that make no sense. Raises UsageError: says which."""
    for name, numbers in given.items():
        if name not in ASSUMABLE:
            fix = instead(name, ASSUMABLE, f"inputs: {', '.join(ASSUMABLE)}")
            raise UsageError(f"no input {name!r}", where="--assume", fix=fix)
        low, value, high = numbers
        least = 0.0 if name in _MAY_BE_ZERO else 1e-9
        most = 1.0 if name in _SHARES else _MOST
        if not all(math.isfinite(each) and least <= each <= most for each in numbers):
            limits = f"a number from {least:g} to {most:g}"
            raise UsageError(f"{name} is not {limits}", where=f"--assume {name}", fix=f"give {limits}")
        if not low <= value <= high:
            raise UsageError(
                f"{low:g}:{value:g}:{high:g} does not rise", where=f"--assume {name}", fix="LOW:VALUE:HIGH"
            )


def may_name(run: Run, name: str, shipped: Collection[str]) -> bool:
    """Whether a site or recipe is read because the records of a run, or a study, name it: by a path another user's
    could lead to what this user alone may read.
    """
    with suppress(OSError):
        return name in shipped or ownership.is_trusted(run.owner)
    return False


def one_gpu_of(run: Run) -> OneGpu:
    """The rate of a run of one GPU, and its recipe's settings. Raises UsageError: it is not of one GPU, not measured,
    a demonstration, or counts no images.
    """
    plan, verdict, figure = run.needed_plan(), run.verdict, run.figure
    where, fix = str(run.path), "give a measured run of one GPU (submit --gpus 1), or --images-per-s"
    if plan.tasks != 1:
        raise UsageError(f"the run {run.run_id} has {plan.tasks} ranks, not one", where=where, fix=fix)
    if figure is None or not figure.value:
        now = "has no verdict yet" if verdict is None else f"is {verdict.outcome}"
        raise UsageError(f"the run {run.run_id} {now}, and gives no rate", where=where, fix=fix)
    if figure.demonstration or figure.unit != "images":
        why = f"makes no claim: {figure.demonstration}" if figure.demonstration else f"counts {figure.unit}, not images"
        raise UsageError(f"the run {run.run_id} {why}", where=where, fix=fix)
    rate = figure.value
    low, high = figure.interval or (rate, rate)
    options: Mapping[str, Option] = {}
    if may_name(run, plan.recipe, loader.names()):
        with suppress(UsageError):
            options = read_recipe(plan.recipe).recipe.options
    given = options_of(plan.program)
    known = {
        key: str(key in given).lower() if isinstance(each, bool) else given.get(key) for key, each in options.items()
    }
    settings = tuple((key, value) for key, value in known.items() if value is not None)
    doubts = f" ({in_words(figure.doubts)})" if figure.doubts else ""
    report = run.records.report(0)
    device = f" on {report.device_name}" if report and report.device_name else ""
    source = f"measured by the run {run.run_id}{device}{doubts}"
    return OneGpu(rate, min(low, rate), max(high, rate), source, settings)


def with_settings(one_gpu: OneGpu, settings: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The settings of the run that measured one GPU, and the user's. Raises UsageError: they contradict each other in
    what decides the time of a step.
    """
    measured, wanted = dict(one_gpu.settings), dict(settings)
    for key, value in measured.items():
        if key in _DECIDE and wanted.get(key, value) != value:
            raise UsageError(
                f"the run of one GPU had {key}={value}, and {key}={wanted[key]} takes another time",
                where=f"--set {key}",
                fix="leave it out, or give a run of one GPU that had it",
            )
    kept = {key: value for key, value in measured.items() if key in _DECIDE}
    return tuple((kept | wanted).items())


def given_rate(
    site: Site, recipe: str, settings: Sequence[tuple[str, str]], images_per_s: float | None, step_ms: float | None
) -> OneGpu:
    """A rate that the user gives: images per second, or the time of a step in milliseconds. Raises UsageError: it is no
    such number, or an option of the recipe is not valid.
    """
    read = read_recipe(recipe).recipe
    if images_per_s is not None:
        rate, where = images_per_s, "--images-per-s"
    else:
        batch = _batch(read, values(read, site.options.get(read.name, {}), settings))
        rate, where = (batch / step_ms * 1e3 if step_ms and step_ms > 0 else 0.0), "--step-ms"
    if not (math.isfinite(rate) and _LEAST_RATE <= rate <= _MOST):
        raise UsageError("that is no rate of one GPU", where=where, fix="give a number above 0")
    return OneGpu(rate, rate, rate, f"{_GIVEN}: {where}")


def curve_of_run(run: Run) -> Curve:
    """The times of a run of the recipe ``allreduce``: the mean over ranks of each round, of which the median. Raises
    UsageError: it is another recipe's run, did not end well, ran on processors, or lacks records.
    """
    plan, verdict = run.needed_plan(), run.verdict
    where, fix = str(run.path), "give a run of submit --recipe allreduce that ended well, on GPUs"
    if verdict is None or verdict.outcome != "ran":
        now = "has no verdict yet" if verdict is None else f"is {verdict.outcome}"
        raise UsageError(f"the run {run.run_id} {now}; it tells no times of allreduces", where=where, fix=fix)
    records: list[AllreduceRecord] = []
    for rank in range(plan.tasks):
        record = run.records.record(rank, "allreduce", AllreduceRecord)
        if record is None or record.size != plan.tasks:
            raise UsageError(f"no whole record of rank {rank}'s allreduces", where=where, fix=fix)
        records.append(record)
    if any(record.device_kind != "cuda" for record in records):
        raise UsageError("its messages were in the memory of processors, not of GPUs", where=where, fix=fix)
    first = records[0]
    shape = [(each.bytes, each.iterations, len(each.rounds_s)) for each in first.times]
    same = all([(e.bytes, e.iterations, len(e.rounds_s)) for e in record.times] == shape for record in records)
    sizes = [size for size, _, _ in shape]
    if not same or not shape or sizes != sorted(set(sizes)) or any(not rounds for _, _, rounds in shape):
        raise UsageError("its ranks did not time the same allreduces", where=where, fix=fix)
    if plan.tasks < 2:
        raise UsageError("an allreduce of one rank tells nothing of a network", where=where, fix=fix)
    times = []
    for place_of_size, (size, iterations, rounds) in enumerate(shape):
        rows = [record.times[place_of_size].rounds_s for record in records]
        means = [sum(row[number] for row in rows) / len(rows) / iterations for number in range(rounds)]
        times.append((float(size), median(means)))
    if reason := too_small(tuple(times)):
        raise UsageError(reason, where=where, fix="measure larger ones: leave out --set max-bytes")
    through = first.through == "horovod"
    return Curve(plan.tasks, plan.nodes, tuple(times), f"measured by the run {run.run_id}", with_coordination=through)


def curve_of_file(path: Path, ranks: int | None) -> Curve:
    """What nccl-tests printed. Raises UsageError: the file cannot be read, or is none of nccl-tests'."""
    try:
        raw = files.read_bytes(path, _MOST_BYTES)
    except OSError as error:
        fix = "give a file that all_reduce_perf's output was written to"
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path), fix=fix) from None
    if b"\0" in raw:
        raise UsageError("no text", where=str(path), fix="give all_reduce_perf's text or CSV")
    return network.parse(raw.decode("utf-8-sig", "replace"), str(path), ranks)


def signs_of(evidence: Evidence, site: Site | None = None) -> Signs:
    """What a run left that can explain a low figure."""
    log, plan = evidence.nccl, evidence.plan
    kinds = [kind for name in sorted(log.networks) if (kind := transport_of(name))]
    is_whole = evidence.result is not None and len(evidence.reports) == plan.tasks
    slow = figure.figure(evidence).stragglers if is_whole and not any(figure.faults(evidence)) else None
    return Signs(
        nodes=plan.nodes,
        planned=plan.transport,
        networks=tuple(sorted(log.networks)),
        kinds=tuple(dict.fromkeys(kinds)),
        adapters=tuple(sorted(log.adapters)),
        planned_adapters=site.fabric.adapters if site is not None and site.fabric else None,
        with_gdr=log.with_gdr,
        without_gdr=log.without_gdr,
        peer_to_peer=log.p2p,
        shared_memory=log.shm,
        slow_ranks=tuple(sorted(slow.ranks.items())) if slow else (),
        slow_nodes=tuple(sorted(slow.nodes.items())) if slow else (),
        removable=slow.removable if slow else 0.0,
        judged_ranks=slow is not None,
        real_data=False if plan.recipe in (*MODELLED, *_SHARDED) else None,
    )


def _batch(recipe: Recipe, chosen: Mapping[str, Option]) -> int:
    batch = chosen.get(recipe.samples_option) if recipe.samples_option else None
    if recipe.name in _SHARDED:
        raise RefusedError(
            f"the cost model does not cover the recipe {recipe.name}: it counts allreduces of gradients, and what FSDP "
            "sends are gathers of parameters and reduce-scatters of gradients",
            where="--recipe",
            fix="--recipe ddp-pytorch has the same models and data; or measure: scale --recipe " + recipe.name,
        )
    if recipe.result != "throughput" or batch is None:
        why = "it is no benchmark" if recipe.result != "throughput" else "it does not say which option is its batch"
        fix = f"name one of: {', '.join(MODELLED)}; or a recipe with `result: throughput` and `samples_option`"
        raise RefusedError(f"the cost model does not cover the recipe {recipe.name}: {why}", where="--recipe", fix=fix)
    text = str(batch)
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise UsageError(f"{text!r} is no batch", where=f"--set {recipe.samples_option}", fix="give 1 or more")
    return int(text)


def _workload(recipe: Recipe, known: _Known) -> tuple[Workload, tuple[tuple[str, str], ...]]:
    chosen, models = known.chosen, known.parameters.models
    size = _batch(recipe, chosen)
    ready = models[known.model].ready if known.model in models else ((1.0, 1.0),)
    way: Literal["horovod", "ddp"] = "horovod" if recipe.framework == "horovod" else "ddp"
    shown = [(recipe.samples_option, str(size))]
    shown += [(key, str(chosen[key])) for key in ("model", "precision") if chosen.get(key) is not None]
    if chosen.get("fp16-allreduce"):
        shown.append(("fp16-allreduce", "true"))
    return Workload(size, ready, way, known.by_mpi), (*sorted(shown), ("gradients reduced by", way))


_UNITS = {"gb-s": "GB/s", "us": "us", "ms": "ms", "mb": "MB", "images-per-s": "1/s"}


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What is known of the inputs: as given, else from the site, the recipe's options or the parameters."""

    site: Site
    chosen: Mapping[str, Option]
    parameters: Parameters
    one_gpu: OneGpu | None
    given: Mapping[str, tuple[float, float, float]]
    by_mpi: bool

    @property
    def model(self) -> str:
        return str(self.chosen.get("model", ""))

    def input(self, name: str, nodes: int) -> Input:
        """One input, of a point on so many nodes. Raises RefusedError: it is not known; says how to give it."""
        if name in self.given:
            unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
            return Input(name, *self.given[name], unit, _GIVEN)
        if name == "one-gpu-images-per-s":
            return self._rate(name)
        if name == "gradient-mb":
            return self._gradients(name)
        key = name
        if name == "inside-share":
            known = self.parameters.gpu(self.site.node.gpu_model)
            key = f"inside-share-{known.link if known else 'pcie'}"
        elif name in ("inside-gb-s", "hop-inside-us"):
            gpu = self.parameters.gpu(self.site.node.gpu_model)
            if gpu is None:
                model = self.site.node.gpu_model or "of unknown model"
                raise _missing(name, f"how fast the GPUs of a node ({model}) reach each other")
            if name == "inside-gb-s":
                return Input(name, gpu.bus_gb_s.low, gpu.bus_gb_s.value, gpu.bus_gb_s.high, "GB/s", gpu.source)
            key = f"hop-{gpu.link}-us"
        elif name in ("between-gb-s", "hop-between-us"):
            if self.site.transport is None:
                raise _missing(name, f"what carries data between the {nodes} nodes (`transport` in the site's file)")
            if name == "between-gb-s":
                return self._between(name, self.parameters.parameters[f"reached-{self.site.transport}"])
            key = f"hop-{self.site.transport}-us"
        elif name == "coordination-us":
            key = "coordination-mpi-us" if self.by_mpi else "coordination-gloo-us"
        parameter = self.parameters.parameters[key]
        return Input(name, parameter.low, parameter.value, parameter.high, parameter.unit, parameter.source)

    def _between(self, name: str, reached: Parameter) -> Input:
        fabric = self.site.fabric
        if fabric is None:
            raise _missing(name, "which adapters connect the nodes (`fabric` in the site's file)")
        line = fabric.adapters * fabric.gbit_s / 8
        of_site = self.site.sources.get("fabric", "the site's file")
        source = f"{fabric.adapters} x {fabric.gbit_s:g} Gbit/s = {line:g} GB/s ({of_site}), of which reached: "
        low, value, high = (line * share for share in (reached.low, reached.value, reached.high))
        return Input(name, low, value, high, "GB/s", source + reached.source)

    def _rate(self, name: str) -> Input:
        one_gpu, site = self.one_gpu, self.site
        if one_gpu is not None:
            return Input(name, one_gpu.low, one_gpu.images_per_s, one_gpu.high, "1/s", one_gpu.source)
        precision = str(self.chosen.get("precision", ""))
        rate = self.parameters.rate(site.node.gpu_model, self.model, precision)
        if rate is None:
            raise RefusedError(
                f"no rate of {self.model or 'this program'} in {precision or 'its precision'} on one GPU "
                f"({site.node.gpu_model or 'of unknown model'}) is published here",
                where=f"site {site.name}",
                fix="measure it (submit --gpus 1) and give the run: --one-gpu RUN; or --images-per-s, or --step-ms",
            )
        return Input(name, rate.low, rate.value, rate.high, "1/s", rate.source)

    def _gradients(self, name: str) -> Input:
        model = self.parameters.models.get(self.model)
        if model is None:
            raise _missing(name, f"how many bytes of gradients the model {self.model or 'of this program'} has")
        # Gradients have the type of the parameters, also under autocast.
        each = 2 if self.chosen.get("fp16-allreduce") else 4
        size = model.parameters * each / 1e6
        source = f"{model.parameters} parameters of {self.model}, {each} bytes each, counted in the recipe's models.py"
        return Input(name, size, size, size, "MB", source)


def _missing(name: str, what: str) -> RefusedError:
    fix = f"give it: --assume {name}=NUMBER; or measure it: --nccl-tests FILE"
    return RefusedError(f"it is not known {what}", where=name, fix=fix)


def _notes(
    curve: Curve | None, points: Sequence[ExpectedPoint], one_gpu: OneGpu | None, inputs: Mapping[str, Input]
) -> Iterable[str]:
    if one_gpu is None:
        yield "the rate of one GPU is a published one: measure it (submit --gpus 1) and give the run with --one-gpu"
    if curve is not None:
        sizes = f"{curve.times[0][0]:.0f} to {curve.times[-1][0]:.0f} bytes"
        nodes = "nodes of unknown number" if curve.nodes is None else counted(curve.nodes, "node")
        yield f"allreduces: {curve.source}, {counted(curve.ranks, 'rank')} on {nodes}, {sizes}"
        calculated = [str(each.gpus) for each in points if not each.measured_allreduce and each.gpus > 1]
        if calculated:
            yield f"for {', '.join(calculated)} GPUs the measured times are extrapolated by the model"
        bounds = [inputs[name].value * 1e6 for name in ("gradient-mb", "fusion-mb", "bucket-mb") if name in inputs]
        if bounds and min(bounds) > curve.times[-1][0]:
            yield f"messages have up to {min(bounds):.0f} bytes: beyond the measured ones times are extrapolated"
    yield from dict.fromkeys(each.no_alarm for each in points if each.no_alarm)
    yield "no run has shown the model right on this site: it is arithmetic with these inputs, not a measurement"
