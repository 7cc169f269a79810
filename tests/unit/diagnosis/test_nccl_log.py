"""NCCL's log, in the formats of its public source; each text says which file and version its lines are formed by."""

from __future__ import annotations

import pytest

from runner.diagnosis.logs import NcclLog, parse, together
from runner.model.request import transport_of

# 2.30.7: src/init.cc (Using network), src/plugin/net.cc (Initialized, Assigned), src/transport/net_ib/init.cc,
# src/transport/net.cc, p2p.cc, nvls.cc. The prefix "host:pid:tid [device] NCCL INFO": src/debug.cc.
INFINIBAND = """\
dgx01:311:342 [0] NCCL INFO NCCL_DEBUG_FILE set by environment
dgx01:311:342 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_6:1/IB [RO]; OOB ib0:10.0.0.1<0>
dgx01:311:342 [0] NCCL INFO Initialized NET plugin IB
dgx01:311:342 [0] NCCL INFO Assigned NET plugin IB to comm
dgx01:311:342 [0] NCCL INFO Using network IB
dgx01:311:342 [0] NCCL INFO NVLS multicast support is not available on dev 0
dgx01:311:342 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA
dgx01:311:342 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
dgx01:311:342 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1(3)/GDRDMA(PCI)/Shared
dgx01:311:342 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
dgx01:311:342 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/IPC
dgx01:311:342 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/direct pointer/read
dgx01:311:342 [0] NCCL INFO Connected all rings
"""
# 2.12.12: src/transport/net.cc (bus ids in the place of indexes), src/transport/shm.cc of 2.18.5.
WITHOUT_GDR = """\
n1:9:9 [1] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE ; OOB eth0:10.1.0.1<0>
n1:9:9 [1] NCCL INFO Using network IBext_v8
n1:9:9 [1] NCCL INFO Channel 00/0 : 1[4f000] -> 2[4f000] [send] via NET/IBext_v8/0
n1:9:9 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
n1:9:9 [1] NCCL INFO Channel 01 : 1[1] -> 0[0] via SHM/direct
"""
# 2.30.7: the same; the name of aws-ofi-nccl before 1.15 holds a blank.
SLINGSHOT = """\
nid1:7:8 [2] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.9.1-aws
nid1:7:8 [2] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)
nid1:7:8 [2] NCCL INFO Using network AWS Libfabric
nid1:7:8 [2] NCCL INFO Channel 03/0 : 2[2] -> 6[2] [send] via NET/AWS Libfabric/1/GDRDMA
"""
# 2.30.7: src/transport/coll_net.cc, nvls.cc.
IN_THE_NETWORK = """\
h1:5:6 [0] NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA
h1:5:6 [0] NCCL INFO Connected Collnet Chains 0
h1:5:6 [0] NCCL INFO NVLS multicast support is available on dev 0
h1:5:6 [0] NCCL INFO Connected NVLS tree
"""


def test_infiniband_with_gpudirect() -> None:
    log = parse(INFINIBAND)
    assert log == NcclLog(frozenset({"IB"}), frozenset({"mlx5_0:1", "mlx5_1:1", "mlx5_6:1"}), 2, 0, 3, processes=1)
    assert log.sentence == (
        "GPUDirect RDMA on 2 of 2 connections; inside nodes 3 connections from GPU to GPU, 0 through the host's "
        "memory; ports mlx5_0:1, mlx5_1:1, mlx5_6:1"
    )


def test_a_way_through_the_hosts_memory_is_counted() -> None:
    assert parse(WITHOUT_GDR) == NcclLog(
        frozenset({"IBext_v8"}), frozenset({"mlx5_2:1"}), without_gdr=1, shm=2, processes=1
    )


def test_a_networks_name_may_hold_a_blank() -> None:
    log = parse(SLINGSHOT)
    assert log == NcclLog(frozenset({"AWS Libfabric"}), with_gdr=1, providers=frozenset({"cxi"}), processes=1)
    assert log.sentence == "GPUDirect RDMA on 1 of 1 connection; libfabric's provider cxi"


@pytest.mark.parametrize(
    ("line", "provider"),
    [
        # aws-ofi-nccl 1.1, 1.14 and 1.17
        ("NET/OFI Selected Provider is efa", "efa"),
        ("NET/OFI Selected Provider is tcp;ofi_rxm (found 1 nics)", "tcp;ofi_rxm"),
        ("NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)", "efa"),
    ],
)
def test_libfabrics_provider(line: str, provider: str) -> None:
    assert parse(f"n1:7:8 [2] NCCL INFO {line}\n").providers == {provider}


def test_reductions_in_the_network_and_in_nvlink() -> None:
    assert parse(IN_THE_NETWORK) == NcclLog(with_gdr=1, nvls=True, collnet=True)


def test_merged_ports_are_all_named() -> None:
    """2.21.5: src/transport/net_ib.cc, dual-port adapters that are used as one."""
    log = parse("h:1:2 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} ; OOB ib0:10.0.0.1<0>")
    assert log.adapters == {"mlx5_0:1", "mlx5_1:1"}


def test_logs_of_processes_add_up() -> None:
    log = together([parse(INFINIBAND), parse(WITHOUT_GDR), NcclLog()])
    assert log.networks == {"IB", "IBext_v8"}
    assert log.processes == 2
    assert (log.with_gdr, log.without_gdr, log.p2p, log.shm, log.nvls) == (2, 1, 3, 2, False)


def test_lines_of_programs_are_passed_over() -> None:
    assert parse("Using network IB\nvia P2P/IPC\n\x00\xff garbage\nNCCL INFO\n") == NcclLog()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("IB", "verbs"), ("IBext", "verbs"), ("IBext_v10", "verbs"), ("Spectrum-X", "verbs"),
        ("Libfabric", "libfabric"), ("AWS Libfabric", "libfabric"), ("OFI", "libfabric"), ("Socket", "sockets"),
        ("UCX", None), ("FasTrak", None), ("GPUDirectTCPX_v7", None), ("", None),
    ],
)  # fmt: skip
def test_the_class_of_a_network_by_its_name(name: str, kind: str | None) -> None:
    assert transport_of(name) == kind
