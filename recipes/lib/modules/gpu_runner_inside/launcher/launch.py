"""One launch from end to end: world, plan, meeting, processors, program, records."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Mapping

from gpu_runner_inside import IMPORT_DIRECTORY, inputs, records
from gpu_runner_inside.launcher import (
    binding,
    caches,
    contact,
    departure,
    driver,
    environment,
    fabric,
    gloo,
    interpreter,
    meeting,
    network,
    places,
    program,
    python_start,
    sources,
    starter,
    watcher,
    wireup,
    world,
)
from gpu_runner_inside.launcher.failure import STATUS, LaunchError
from gpu_runner_inside.launcher.options import Options

_MET_HERE = ("rendezvous", "torchrun", "own")  # wireups in which the launchers meet before their programs start


class Launch:
    """One launch: the options, the world once it is known, and the times for the records."""

    def __init__(self, options: Options, env: Mapping[str, str]) -> None:
        self.options = options
        self.env = dict(env)
        self.started_s = time.time()
        self.clock = time.monotonic()
        self.host = env.get("SLURMD_NODENAME") or socket.gethostname()
        self.node_name = env.get("SLURMD_NODENAME") or env.get("RUNNER_NODE")
        self.here: world.World | None = None
        # For the record of a launch that fails before its world is known.
        self.rank = _rank_hint(env)
        self.size = 0
        self.waited_s = 0.0
        self.program_started_s: float | None = None
        self.program_started_monotonic_s: float | None = None
        self.relay = program.Relay()
        self.contact = contact.Contact()
        self.caches: caches.Caches | None = None
        self.python_place: str | None = None  # where its processes leave their worlds
        self.rendezvous: dict[str, Any] = {}  # what rank 0's service said at the end
        self.sources: sources.Sources = {}  # of rank 0, as it began
        self.given: Mapping[str, str] = {}  # to the program, as inputs.variables

    def run(self) -> int:
        """Launch, and return the exit status; the exit record is always written."""
        ended: program.Ended | None = None
        error: LaunchError | None = None
        try:
            try:
                ended = self._run()
            finally:
                program.ignore_signals()
        except LaunchError as failure:
            error = failure
        except (world.WorldError, meeting.MeetingError, program.NotStartedError) as failure:
            error = LaunchError(failure.code, str(failure))
        except program.StoppedError as stopped:
            error = LaunchError("stopped-before-start", str(stopped), 128 + stopped.number)
        except Exception as failure:
            error = LaunchError("launcher-fault", repr(failure))
        if error is not None:
            self._say(f"{error.code}: {error}")
        status = ended.status if ended is not None else error.status if error is not None else 1
        status = self._record_exit(ended, error, status)
        options = self.options
        if options.leave_together is not None and status == 0 and self.here is not None and options.run_dir is not None:
            departure.run_in_parallel(options.run_dir, self.here, options.leave_together or math.inf)
        self._leave()
        return status

    def _leave(self) -> None:
        if self.caches is not None:
            self.caches.leave()
            self.caches = None

    def _run(self) -> program.Ended:
        options = self.options
        here = world.of_environment(self.env, options.local_sizes)
        self.here = here
        self.rank, self.size = here.rank, here.size
        world.check(here, options.size, options.local_sizes)
        token = world.token(self.env)
        made = self._environment_of(here)
        made["RUNNER_TOKEN"] = token
        made.update(self._cache_variables(here))
        made.update(self._python_variables(made))
        self._rotate(made)
        shown = binding.visible(binding.gpus(), made.get("CUDA_VISIBLE_DEVICES"))
        self._record_start(
            here, token, shown
        )  # before the meeting: so each rank that came is known, even if others do not
        if self.options.run_dir is not None:
            _check_here(_plan(self.options.run_dir))
        made.update(self._driver_variables(here, made))
        if here.size > 1 and options.wireup == "rendezvous" and not network.knows_itself():
            self._say(
                f"warning: {socket.gethostname()!r}, this node's own name, does not resolve in here. Horovod's Gloo "
                "looks it up, and ends with signal 11 where it cannot: add it to /etc/hosts in the container"
            )
        if here.size > 1 and options.wireup == "rendezvous":
            self._check_gloo()
        place = self._meet(here, token)
        if place is None and options.wireup in ("rendezvous", "torchrun"):
            made.setdefault("MASTER_PORT", str(network.free_port("127.0.0.1", [0])))
        if options.wireup == "rendezvous":
            made = wireup.by_rendezvous(made, here, self.host, place)
        elif options.wireup == "torchrun":
            made = wireup.like_torchrun(made, here, place)
        elif options.wireup == "own":
            made = wireup.of_its_own(made, options.gpus, len(binding.gpus()))
            port = network.free_port("127.0.0.1", [0]) if place is None else 0
            made = wireup.of_a_node(made, here, place, options.gpus, port, is_starter=self._is_starter)
            if place is None and self._is_starter and not network.knows_itself():
                made.setdefault("PET_LOCAL_ADDR", "localhost")  # else torchrun's ranks look for that name, for minutes
        argv, functions = self._started(made, here)
        made.update(functions)
        watching = self._watch(here, token)  # before the binding: it keeps off this rank's processors where it can
        try:
            made.update({} if watching is None else watching.variables)
            bound = self._bind(here, shown)
            self._record_start(here, token, shown, place, bound, made)
            self.program_started_s, self.program_started_monotonic_s = time.time(), time.monotonic()
            port = 0 if place is None else place.master_port
            ended = self.contact.during(
                port, lambda: self.relay.run(argv, made, self.options.run_dir, umask=options.umask)
            )
        finally:
            if watching is not None:
                watching.end()
        if place is not None and here.rank == 0:
            self.rendezvous = meeting.linger(place, here.size)
        return ended

    def _check_gloo(self) -> None:
        """Without Gloo each rank would be a world of its own. Programs that do not need Horovod are only warned."""
        library = gloo.library_without_gloo()
        if not library:
            return
        what = (
            f"Horovod here has no Gloo ({library}), by which its ranks would meet: start them by MPI "
            "(--wireup pmix, pmi2 or mpich), or use an image of `gpu-runner build`"
        )
        if self.options.run_dir is not None and _plan(self.options.run_dir).get("framework") == "horovod":
            raise LaunchError("horovod-without-gloo", what)
        self._say(f"warning: {what}")

    @property
    def _is_starter(self) -> bool:
        return bool(self.options.fill or self.options.calls)

    def _started(self, made: Mapping[str, str], here: world.World) -> tuple[list[str], dict[str, str]]:
        """The program, and variables of it, with what it needs to start ranks that form one world."""
        argv, (first, count) = list(self.options.argv), self.options.fill or (0, 0)
        if not self._is_starter:
            return argv, {}
        values = {"index": str(here.rank), "address": made["MASTER_ADDR"], "port": made["MASTER_PORT"]}

        def hostfile() -> str:
            directory = self._private_directory()
            if directory is None:
                raise LaunchError("launcher-fault", "there is no directory on this node for a host file")
            return starter.write_hosts(directory, here.size, self.options.gpus or 1)

        argv[first : first + count] = starter.fill(argv[first : first + count], values, hostfile)
        calls = [(call, starter.fill(words, values, hostfile)) for call, words in self.options.calls]
        return argv, starter.functions(calls)

    def _environment_of(self, here: world.World) -> dict[str, str]:
        made = dict(self.env)
        made.update(wireup.of_world(here))
        made["RUNNER_LIB"] = IMPORT_DIRECTORY
        made["RUNNER_HOST"] = self.host
        if self.options.run_dir is not None:
            made["RUNNER_RUN_DIR"] = self.options.run_dir
        made.setdefault("HOSTNAME", os.uname().nodename)
        made.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        if self.options.bind != "none" and here.nodes > 1:
            adapters = fabric.nccl_adapters(fabric.ports())
            if adapters:
                made.setdefault("NCCL_IB_HCA", adapters)
        for name in self.options.unset:
            made.pop(name, None)
        return made

    def _python_variables(self, made: Mapping[str, str]) -> dict[str, str]:
        plan = {} if self.options.run_dir is None else _plan(self.options.run_dir)
        if not python_start.is_wanted(made, plan):
            return {}
        self.python_place = python_start.prepare(self._private_directory())
        return python_start.variables(made, self.options.wireup, self.python_place)

    def _rotate(self, made: dict[str, str]) -> None:
        """The GPU that the first task shall have comes first."""
        first = self.options.first_gpu
        try:
            rotated = wireup.from_gpu(made, first, len(binding.gpus()))
        except IndexError:
            shown = made.get("CUDA_VISIBLE_DEVICES", "not set")
            raise LaunchError(
                "gpus-missing",
                f"GPU {first} of this node is planned, and there are fewer (CUDA_VISIBLE_DEVICES: {shown})",
            ) from None
        if rotated is not None:
            made["CUDA_VISIBLE_DEVICES"] = rotated

    def _driver_variables(self, here: world.World, made: Mapping[str, str]) -> dict[str, str]:
        """Variables that NVIDIA's driver needs here; raises where the job's GPUs cannot be used."""
        options = self.options
        own = options.wireup == "own" and options.gpus is not None
        gpus = options.gpus if own and options.gpus is not None else here.local_size
        needs = None if options.run_dir is None else driver.needs_of(_plan(options.run_dir), gpus, own=own)
        if needs is None:
            return {}
        first = here.local_rank == 0
        return driver.ready(needs, made, calls=first, directory=self._private_directory, say=self._say)

    def _private_directory(self) -> str | None:
        """The user's own on this node until the job ends; None where none can be made."""
        if self.caches is None:
            self.caches = caches.directory(self.env, self.node_name or self.host, self._job(), self.options.run_dir)
        return None if self.caches is None else self.caches.path

    def _job(self) -> str:
        return _job_id(self.env) or f"pid{os.getpid()}"

    def _cache_variables(self, here: world.World) -> dict[str, str]:
        if self.options.caches == "shell":
            return {}
        node, home = self.node_name or self.host, self.options.caches == "home"
        self.caches = caches.prepare(
            self.env, node, self._job(), self.options.run_dir, home=home, image=self._is_in_image()
        )
        made = caches.apart(self.env, self.options.run_dir)
        made.update({} if self.caches is None else self.caches.variables)
        if self.caches is not None and self.caches.of_others and here.local_rank == 0:
            self._say(
                f"note: {', '.join(self.caches.of_others)}: a directory of the job's own, as others may have put "
                f"on {self.host} what is there, or it has no room; RUNNER_TRUST=NAME trusts them"
            )
        if here.rank == 0 and self.caches is not None and not home and not caches.HOME.keys().isdisjoint(made):
            self._say(
                "note: the home directory is not visible in here. What programs cache there (models, data sets) is in "
                f"{self.caches.path} until the job ends; --mount and --env XDG_CACHE_HOME=... keep it elsewhere"
            )
        return {name: value for name, value in made.items() if name not in self.options.unset}

    def _is_in_image(self) -> bool:
        runtime = _plan(self.options.run_dir).get("runtime") if self.options.run_dir is not None else None
        return runtime not in (None, "native")

    def _meet(self, here: world.World, token: str) -> wireup.Meeting | None:
        if here.size == 1 or self.options.wireup not in _MET_HERE:
            return None
        began, secret = time.monotonic(), world.secret(self.env)
        host, port = meeting.rendezvous_place(self.env, here, token)
        try:
            if here.rank == 0:
                meeting.serve(host, port, secret, here.size)
            return meeting.join(here, host, port, secret, meeting.patience_s(self.env, self.options.timeout_s))
        finally:
            self.waited_s = time.monotonic() - began

    def _watch(self, here: world.World, token: str) -> watcher.Watcher | None:
        if self.options.run_dir is None or here.local_rank != 0:
            return None
        return watcher.Watcher(
            {
                "run_dir": self.options.run_dir,
                "node_rank": here.node_rank,
                "rank": here.rank,
                "host": self.host,
                "token": token,
            }
        )

    def _bind(self, here: world.World, shown: tuple[binding.Gpu, ...]) -> binding.Binding:
        if self.options.bind == "none" or self.options.wireup == "own":
            return binding.Binding(frozenset(), "not requested")
        allowed = frozenset(os.sched_getaffinity(0))
        of_all = self.options.bind == "gpu-share"
        return binding.apply(binding.near_gpu(here.local_rank, here.local_size, shown, allowed, of_all=of_all))

    def _record_start(
        self,
        here: world.World,
        token: str,
        shown: tuple[binding.Gpu, ...],
        place: wireup.Meeting | None = None,
        bound: binding.Binding | None = None,
        made: Mapping[str, str] | None = None,
    ) -> None:
        if self.options.run_dir is None:
            return
        env = self.env if made is None else made
        if here.rank == 0 and made is None:  # before the meeting: no rank's program has begun
            self.sources = self._sources()
        self.given = inputs.variables(env)
        device = binding.device_of_task(here.local_rank, binding.gpus(), shown, env)
        fields: dict[str, Any] = dict(
            asdict(here),
            local_sizes=world.text_of(here.local_sizes),  # a list would make the records grow with ranks times nodes
            host=self.host,
            node_name=self.node_name,
            boot_id=_boot_id(),
            pid=os.getpid(),
            time_s=self.started_s,
            # Where the program itself meets the others, the launcher knows no more than this.
            met=place is not None or here.size == 1 or (bound is not None and self.options.wireup not in _MET_HERE),
            waited_s=self.waited_s,
            clock_offset_s=None if place is None else place.clock_offset_s,
            clock_error_s=None if place is None else place.clock_error_s,
            job_id=_job_id(env),
            step_id=env.get("SLURM_STEP_ID") or env.get("PALS_APID"),
            token=token,
            plan_sha256=_plan_sha256(self.options.run_dir),
            wireup=self.options.wireup,
            rendezvous=None if place is None else f"{place.address}:{place.port}",
            interface=env.get("HOROVOD_GLOO_IFACE") if place is None else place.interface,
            gpus_seen=device.count,
            device_kind=device.kind,
            device_index=device.index,
            device_uuid=device.uuid,
            device_bus=None if device.gpu is None else device.gpu.bus,
            device_ports=[]
            if device.gpu is None
            else [port.text for port in fabric.near_gpu(device.gpu, fabric.ports())],
            cuda_visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
            cpus=binding.show(frozenset(os.sched_getaffinity(0))),
            bound="" if bound is None else bound.why,
            argv=list(self.options.argv),
            cwd=os.getcwd(),
            python=".".join(map(str, sys.version_info[:3])),
            environment=environment.recorded(env),
            environment_names=environment.names(env),
        )
        try:
            records.write(records.rank_record(self.options.run_dir, here.rank, "start"), "start", fields)
        except OSError as error:
            raise LaunchError("record-not-written", f"start record: {error}") from error

    def _record_exit(self, ended: program.Ended | None, error: LaunchError | None, status: int) -> int:
        if self.options.run_dir is None:
            return status
        now, monotonic_s = time.time(), time.monotonic()
        fields = {
            "rank": self.rank,
            "size": self.size,
            "host": self.host,
            "pid": os.getpid(),
            "started_s": self.started_s,
            "program_started_s": self.program_started_s,
            "program_started_monotonic_s": self.program_started_monotonic_s,
            "ended_s": now,
            "ended_monotonic_s": monotonic_s,
            "elapsed_s": monotonic_s - self.clock,
            "waited_s": self.waited_s,
            "status": status,
            "exit_code": None if ended is None else ended.code,
            "signal": None if ended is None else ended.signal,
            "max_rss_bytes": 0 if ended is None else ended.max_rss_bytes,
            "user_s": 0.0 if ended is None else ended.user_s,
            "system_s": 0.0 if ended is None else ended.system_s,
            "signals_forwarded": self.relay.forwarded,
            "master_port_used": self.contact.seen,
            "rendezvous_values": self.rendezvous.get("values"),
            "rendezvous_ranks": self.rendezvous.get("horovod_ranks"),
            "worlds": python_start.worlds(self.python_place),
            "program": {**inputs.collected(self.python_place, self.given), "sources": self._changes()},
            "error": None if error is None else error.code,
            "message": "" if error is None else str(error),
        }
        if self.options.leave_together is not None and status == 0:
            self._leave()  # with the last record, the image may go away
        try:
            records.write(records.rank_record(self.options.run_dir, self.rank, "exit"), "exit", fields)
        except OSError as failure:
            self._say(f"record-not-written: exit record: {failure}")
            return status or STATUS["record-not-written"]
        return status

    def _sources(self) -> sources.Sources:
        return sources.files(self.options.argv, self.options.run_dir or "", inputs.own_to_a_job(self.env))

    def _changes(self) -> dict[str, Any]:
        return sources.changes(self.sources, self._sources()) if self.rank == 0 else {}

    def _say(self, message: str) -> None:
        line = f"launch: rank {self.rank} on {self.host}: {message}\n"
        with suppress(OSError):  # standard error may be closed: unbuffered, or Python's own exit would fail too
            os.write(2, line.encode(errors="backslashreplace"))


def _plan_sha256(run_dir: str) -> str | None:
    """Of the plan that this rank sees, to distinguish the records of another run; None where there is none."""
    try:
        with open(os.path.join(run_dir, "plan.json"), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def _plan(run_dir: str) -> Mapping[str, Any]:
    """The plan; empty where it cannot be read."""
    try:
        with open(os.path.join(run_dir, "plan.json"), "rb") as file:
            plan = json.load(file)
    except (OSError, ValueError):
        return {}
    return plan if isinstance(plan, dict) else {}


def _check_here(plan: Mapping[str, Any]) -> None:
    """Raises LaunchError: this node's Python or the working directory is not as planned."""
    interpreter.check(plan)
    places.check_start(plan.get("owners", ()))


def _job_id(env: Mapping[str, str]) -> str | None:
    return env.get("RUNNER_JOB_ID") or env.get("SLURM_JOB_ID") or env.get("PBS_JOBID")


def _boot_id() -> str | None:
    """Of this node's kernel; None where it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() or None
    except OSError:
        return None


def _rank_hint(env: Mapping[str, str]) -> int:
    for name in ("SLURM_PROCID", "PMI_RANK", "PALS_RANKID", "OMPI_COMM_WORLD_RANK", "RANK"):
        if re.fullmatch(r"\d{1,9}", env.get(name, "")):
            return int(env[name])
    return 0
