"""Which rank of which world a task is, and which variables a program gets."""

import os
import socket

import pytest
from gpu_runner_inside.launcher import binding, environment, network, wireup, world


def slurm(rank: int, local: int, node: int, spread: str, size: int = 3) -> dict[str, str]:
    numbers = {"PROCID": rank, "NTASKS": size, "LOCALID": local, "NODEID": node, "STEP_TASKS_PER_NODE": spread}
    return {f"SLURM_{name}": str(number) for name, number in numbers.items()}


@pytest.mark.parametrize(("text", "sizes"), [("8(x2)", (8, 8)), ("2,1", (2, 1)), ("4(x2),1", (4, 4, 1)), ("1", (1,))])
def test_slurms_list_of_tasks_per_node(text: str, sizes: tuple[int, ...]) -> None:
    assert world.sizes_of(text) == sizes
    assert world.text_of(sizes) == text


def pmi(rank: int, size: int, local: int, local_size: int) -> dict[str, str]:
    numbers = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local, "LOCAL_SIZE": local_size}
    return {f"PMI_{name}": str(number) for name, number in numbers.items()}


def test_the_place_of_a_task() -> None:
    """The step counts and not the job; without a scheduler it is a world of one."""
    first, last = (world.of_environment(slurm(*place, "2,1")) for place in ((1, 1, 0), (2, 0, 1)))
    assert (first.local_size, first.cross_rank, first.cross_size) == (2, 0, 1)
    assert (last.local_size, last.node_rank, last.cross_rank, last.cross_size) == (1, 1, 1, 2)
    assert world.of_environment(dict(slurm(0, 0, 0, "2", size=16), SLURM_STEP_NUM_TASKS="2")).size == 2
    alone = world.of_environment({})
    assert (alone.rank, alone.size, alone.source) == (0, 1, "single")
    assert world.of_environment(pmi(5, 8, 1, 4)).local_sizes == (4, 4)
    assert world.of_environment(pmi(4, 5, 0, 1), (4, 1)).node_rank == 1
    with pytest.raises(world.WorldError, match="--local-sizes"):
        world.of_environment(pmi(0, 5, 0, 4))


@pytest.mark.parametrize(
    "change",
    [
        *({"SLURM_STEP_TASKS_PER_NODE": text} for text in ("", "8(x", "a", "1,,2", "8(2)", "-1")),
        {"SLURM_NTASKS": "4"}, {"SLURM_NODEID": "7"}, {"SLURM_LOCALID": "2"}, {"SLURM_PROCID": "x"},
    ],
)  # fmt: skip
def test_contradictions_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(world.WorldError) as caught:
        world.of_environment(dict(slurm(0, 0, 0, "2,1"), **change))
    assert caught.value.code == "world-unknown"


def test_another_world_than_planned_is_refused() -> None:
    alone = world.of_environment({})
    with pytest.raises(world.WorldError, match="16 tasks were planned") as caught:
        world.check(alone, 16, ())
    assert caught.value.code == "world-mismatch"
    uneven = world.of_environment(slurm(0, 0, 0, "14,2", size=16))
    with pytest.raises(world.WorldError, match="8,8 tasks a node were planned"):
        world.check(uneven, 16, (8, 8))
    world.check(world.of_environment(slurm(0, 0, 0, "1,2")), 3, (2, 1))


def test_a_token_and_a_secret_are_the_job_steps_own_and_only_its_ranks_can_make_the_secret() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "RUNNER_RDV_KEY": "k"}
    for made_of in (world.token, world.secret):
        assert made_of(dict(step, SLURM_PROCID="0")) == made_of(dict(step, SLURM_PROCID="1"))
        for other in ({"SLURM_JOB_ID": "8"}, {"SLURM_STEP_ID": "1"}):
            assert made_of(step | other) != made_of(step)
    assert world.secret(step) != world.secret(dict(step, RUNNER_RDV_KEY="l"))
    assert world.token(step) == world.token(dict(step, RUNNER_RDV_KEY="l"))
    with pytest.raises(world.WorldError, match="RUNNER_RDV_KEY is not set") as caught:
        world.secret({"SLURM_JOB_ID": "7"})
    assert caught.value.code == "world-unknown"


MEETING = wireup.Meeting("10.0.0.5", 12042, "ab12", "ib0", 13000)
LAST = slurm(2, 0, 1, "2,1")


def test_horovods_variables() -> None:
    here = world.of_environment(LAST)
    made = wireup.by_rendezvous({"HOME": "/root", "HOROVOD_RANK": "9"}, here, "dgx02", MEETING)
    assert made["HOROVOD_RANK"] == made["RANK"] == "2"
    assert (made["HOROVOD_CROSS_RANK"], made["HOROVOD_CROSS_SIZE"], made["NODE_RANK"]) == ("1", "2", "1")
    assert made["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.5:12042/ab12"
    assert (made["HOROVOD_GLOO_IFACE"], made["HOROVOD_HOSTNAME"]) == ("ib0", "dgx02")
    assert (made["MASTER_ADDR"], made["MASTER_PORT"], made["HOME"]) == ("10.0.0.5", "13000", "/root")
    nowhere = wireup.Meeting("10.0.0.5", 12042, "ab12", None, 0)
    assert "MASTER_PORT" not in wireup.by_rendezvous({}, here, "dgx02", nowhere), "none is free"


def test_a_free_port_is_a_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert network.free_port("127.0.0.1", [port]) == 0
        assert network.free_port("127.0.0.1", [port, 0]) not in (0, port)
    assert network.free_port("127.0.0.1", [port]) == port


@pytest.mark.parametrize(
    ("host", "known_as", "on_its_way", "address"),
    [
        ("a", ["127.0.0.1"], "10.0.0.5", "10.0.0.5"),
        ("a", ["127.0.1.1", "10.0.0.6"], "10.0.0.5", "10.0.0.6"),
        ("a", ["127.0.0.1"], None, "127.0.0.1"),
        ("127.0.0.2", ["127.0.0.2"], "10.0.0.5", "127.0.0.2"),
    ],
    ids=["as cloud-init has it", "two", "no way out", "as it is given"],
)
def test_a_host_that_calls_itself_a_loopback_address_has_another(
    host: str, known_as: list[str], on_its_way: str | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", (each, 0)) for each in known_as])
    monkeypatch.setattr(network, "source_address", lambda _: on_its_way)
    assert network.resolve(host) == address


def test_a_world_of_one_needs_no_rendezvous_and_inherits_none() -> None:
    stale = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "elsewhere", "HOROVOD_GLOO_IFACE": "ib1"}
    made = wireup.by_rendezvous(stale, world.of_environment({}), "here", None)
    assert "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in made
    assert made["HOROVOD_GLOO_IFACE"] == "ib1"
    assert made["HOROVOD_SIZE"] == "1"


def test_no_secret_is_recorded() -> None:
    result = environment.recorded({
        "HOROVOD_RANK": "0", "NCCL_API_KEY": "k", "RUNNER_TOKEN": "t", "RUNNER_RDV_KEY": "r", "HF_HOME": "/x",
        "RUNNER_RENDEZVOUS": "10.0.0.5:12042/ab12", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.5:12042/ab12",
        "UCX_URL": "http://me:pw@host/", "SLURM_JWT": "j",
    })  # fmt: skip
    place = {name: "10.0.0.5:12042" for name in ("RUNNER_RENDEZVOUS", "HOROVOD_GLOO_RENDEZVOUS_ADDR")}
    assert result == {"HOROVOD_RANK": "0", "UCX_URL": "http://***@host/", **place}


GPUS = tuple(
    binding.Gpu(f"0000:{i:02x}:00.0", f"GPU-{i}aa", binding.parse(near))
    for i, near in enumerate(("0-3,8-11", "0-3,8-11", "4-7,12-15", "4-7,12-15"))
)


def test_what_cuda_shows() -> None:
    assert [GPUS.index(gpu) for gpu in binding.visible(GPUS, "2,0")] == [2, 0]
    assert [GPUS.index(gpu) for gpu in binding.visible(GPUS, "GPU-3")] == [3]
    assert binding.visible(GPUS, None) == GPUS
    assert binding.visible(GPUS, "") == ()
    assert [GPUS.index(gpu) for gpu in binding.visible(GPUS, "1,9,2")] == [1]


def test_binding_stays_within_what_is_allowed() -> None:
    assert binding.near_gpu(0, 1, GPUS[:1], frozenset((1, 2, 20))).cpus == {1, 2}
    nowhere = binding.near_gpu(0, 1, GPUS[:1], frozenset((20,)))
    assert (nowhere.cpus, "no processor near" in nowhere.why) == (frozenset(), True)
    assert binding.near_gpu(0, 1, (), frozenset((1,))).why == "no GPU is seen"
    assert binding.show(binding.parse("0-2,8\n")) == "0-2,8"
    assert binding.parse("") == frozenset()


def test_a_binding_that_the_kernel_refuses_is_reported_and_leaves_the_task_as_it_is() -> None:
    before = os.sched_getaffinity(0)
    result = binding.apply(binding.Binding(frozenset({1 << 15}), "near GPU 0000:07:00.0"))
    assert result.cpus == frozenset()
    assert result.why.startswith("not bound (near GPU 0000:07:00.0): the kernel refuses: ")
    assert os.sched_getaffinity(0) == before
    assert binding.apply(binding.Binding(frozenset(before), "all")).why == "all"


def test_a_program_with_processes_of_its_own_on_several_nodes_learns_where_to_meet() -> None:
    """torchrun's PET_* (torch.distributed.argparse_util), Lightning's and everybody's names; on one node a free
    port, as PET_STANDALONE unpickles what other users put there.
    """
    here = world.of_environment(slurm(1, 0, 1, "1(x2)", size=2))
    stale = wireup.of_its_own({**slurm(1, 0, 1, "1(x2)", size=2), **wireup.of_world(here), "MASTER_PORT": "1"})
    made = wireup.of_a_node(stale, here, MEETING, 8, 29501)
    plain = {"NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "8", "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "13000"}
    result = plain | {f"PET_{name}": value for name, value in plain.items()}
    assert {name: made[name] for name in result} == result
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"} & set(made)
    alone = wireup.of_a_node({"A": "1"}, world.of_environment({}), None, 8, 29501)
    assert (alone["PET_NNODES"], alone["PET_NPROC_PER_NODE"], alone["PET_MASTER_PORT"]) == ("1", "8", "29501")
    assert not {"MASTER_ADDR", "MASTER_PORT", "PET_STANDALONE"} & set(alone)
    seen = wireup.of_a_node({"A": "1"}, world.of_environment({}), None, 8, 29501, is_starter=True)
    assert (seen["NODE_RANK"], seen["MASTER_ADDR"], seen["MASTER_PORT"], [name for name in seen if "PET_" in name]) == (
        "0",
        "127.0.0.1",
        "29501",
        [],
    )


def test_torchruns_variables_tell_torch_and_lightning_that_they_are_started() -> None:
    """The contract of torch.distributed.elastic, and of Lightning's TorchElasticEnvironment, on the third rank of two
    nodes; Slurm's own variables stay, since Lightning asks for torchrun's first.
    """
    stale = {"HOROVOD_SIZE": "9", "SLURM_NTASKS": "3", "TORCHELASTIC_RUN_ID": "old", "RUNNER_TOKEN": "cd34"}
    made = wireup.like_torchrun(stale, world.of_environment(LAST), MEETING)
    result = {
        "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2", "NODE_RANK": "1", "ROLE_RANK": "2", "ROLE_WORLD_SIZE": "3", "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "13000", "TORCHELASTIC_RUN_ID": "cd34",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "SLURM_NTASKS": "3",
    }  # fmt: skip
    assert {name: made[name] for name in result} == result
    assert not [name for name in made if name.startswith("HOROVOD_")]
    alone = wireup.like_torchrun({}, world.of_environment({}), None)
    assert (alone["MASTER_ADDR"], alone["MASTER_PORT"], alone["WORLD_SIZE"]) == ("127.0.0.1", "29500", "1")


@pytest.mark.parametrize(
    ("variable", "gpus", "shown"),
    [(None, 2, "0,1"), ("4,5,6", 2, "4,5"), ("GPU-a,GPU-b", 1, "GPU-a"), ("1", 2, "1"), (None, 8, None),
     (None, None, None)],
)  # fmt: skip
def test_a_program_with_processes_of_its_own_sees_the_gpus_that_are_its(
    variable: str | None, gpus: int | None, shown: str | None
) -> None:
    env = {"RANK": "0"} if variable is None else {"RANK": "0", "CUDA_VISIBLE_DEVICES": variable}
    made = wireup.of_its_own(env, gpus, seen=8)
    assert made.get("CUDA_VISIBLE_DEVICES") == shown
    assert "RANK" not in made
