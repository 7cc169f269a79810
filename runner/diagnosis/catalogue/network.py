"""What NCCL's logs say of the network that it used."""

from __future__ import annotations

from runner.diagnosis.failure import Failure

FAILURES = (
    Failure(
        code="nccl-on-sockets",
        source="NCCL log",
        pattern=r"^Socket$",
        cause="NCCL used sockets between nodes, not the planned fabric (see nccl/)",
        fix="see in nccl/ why NCCL took no fabric: often NCCL_IB_HCA, a missing plugin, or the memlock limit",
        who="site",
        outcome="not-proven",
    ),
    Failure(
        code="libfabric-on-sockets",
        source="NCCL log",
        pattern=r"^libfabric (ofi_\w+;)?(tcp|sockets|udp)\b",
        cause="NCCL used libfabric over sockets between nodes, not the planned fabric (see nccl/)",
        fix="see in nccl/ why libfabric took no fabric: its provider (FI_PROVIDER: cxi, efa) is not in the container, "
        "or cannot open the device",
        who="site",
        outcome="not-proven",
    ),
)
