"""Inputs of the cost model for tests: the shipped parameters, and what a test says of machine and training."""

from runner.expectation.expect import Machine, Placement, Workload, evaluate, load, point
from runner.model.expectation import ExpectedPoint, Input

KNOWN = load()
RESNET50 = KNOWN.models["resnet50"].ready


def exact(name: str, value: float) -> Input:
    return Input(name, value, value, value, "", "a test")


def between(name: str, low: float, value: float, high: float) -> Input:
    return Input(name, low, value, high, "", "a test")


def shipped(parameter: str, name: str = "") -> Input:
    known = KNOWN.parameters[parameter]
    return Input(name or parameter, known.low, known.value, known.high, known.unit, known.source)


def a100_cluster(adapters: int) -> list[Input]:
    """Nodes of A100 with NVLink, and so many adapters of 200 Gbit/s; Horovod coordinates by MPI."""
    gpu, reached = KNOWN.gpu("NVIDIA A100-SXM4"), KNOWN.parameters["reached-verbs"]
    assert gpu is not None
    line = adapters * 25.0
    names = ("forward-share", "spread", "cycle-ms", "fusion-mb", "bucket-mb", "start-us", "tree-share", "curve-spread")
    return [
        *(shipped(name) for name in names),
        shipped("coordination-mpi-us", "coordination-us"),
        shipped("hop-nvlink-us", "hop-inside-us"),
        shipped("hop-verbs-us", "hop-between-us"),
        between("inside-gb-s", gpu.bus_gb_s.low, gpu.bus_gb_s.value, gpu.bus_gb_s.high),
        between("between-gb-s", line * reached.low, line * reached.value, line * reached.high),
    ]


def with_inputs(inputs: list[Input], *others: Input) -> list[Input]:
    """The inputs, with others in the place of those of the same name, or behind them."""
    names = {each.name for each in others}
    return [*(each for each in inputs if each.name not in names), *others]


def expected(
    gpus: int, per_node: int, batch: int, rate: float, inputs: list[Input], *, adapters: int | None = 8
) -> ExpectedPoint:
    """ResNet-50 by Horovod on full nodes."""
    placement = Placement(gpus, -(-gpus // per_node), min(gpus, per_node))
    every = with_inputs(inputs, exact("one-gpu-images-per-s", rate))
    return point(placement, Machine(per_node, adapters), Workload(batch, RESNET50, "horovod", by_mpi=True), every)


def rate_of_one_gpu(
    gpus: int, per_node: int, batch: int, measured: float, inputs: list[Input], *, adapters: int | None = 8
) -> float:
    """The rate of one GPU with which the model gives what was measured on several, as ``expected`` places them."""
    placement, machine = Placement(gpus, -(-gpus // per_node), min(gpus, per_node)), Machine(per_node, adapters)
    workload, values = Workload(batch, RESNET50, "horovod", by_mpi=True), {each.name: each.value for each in inputs}
    low, high = measured / gpus, 3 * measured / gpus
    for _ in range(25):
        middle = (low + high) / 2
        made = evaluate(placement, machine, workload, {**values, "one-gpu-images-per-s": middle}, None)
        low, high = (middle, high) if made.images_per_s < measured else (low, middle)
    return low
