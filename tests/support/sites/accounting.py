"""Accounts in a box: slurmdbd over MariaDB, as sites have it; the box has their programs (``clusters.PACKAGES``)."""

from tests.support.daemons import CONTROLLER, Daemons
from tests.support.waiting import until

_DATABASE = """
mkdir -p /run/mysqld /var/box/db
mariadb-install-db --datadir=/var/box/db --user=root --auth-root-authentication-method=socket --skip-test-db >/dev/null
mariadbd --user=root --datadir=/var/box/db --skip-networking --socket=/run/mysqld/mysqld.sock \
    --innodb-use-native-aio=0 --innodb-flush-method=fsync --innodb-lock-wait-timeout=900 \
    >>/var/log/slurm/mariadb.log 2>&1 &
for try in $(seq 600); do
    ! mariadb-admin --socket=/run/mysqld/mysqld.sock ping >/dev/null 2>&1 || exit 0
    sleep 0.1
done
exit 1
"""
_CONF = """\
AuthType=auth/munge
AuthInfo=socket=/var/box/munge/socket
DbdHost=box
SlurmUser=root
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/var/box/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageUser=root
StorageLoc=slurm_acct_db
"""
_SETTINGS = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": "box",
    "AccountingStoragePass": "/var/box/munge/socket",
    "AccountingStorageTRES": "gres/gpu",
    "AccountingStorageEnforce": "associations,limits,qos",
}


def begin(daemons: Daemons) -> None:
    daemons.inside("sh", "-c", _DATABASE)
    daemons.inside("sh", "-c", 'umask 077; printf %s "$1" >/etc/slurm/slurmdbd.conf; slurmdbd', "sh", _CONF)
    # sacctmgr needs slurm.conf to name the daemon, slurmctld needs the cluster to be known: the file comes first.
    conf = daemons.inside("cat", "/etc/slurm/slurm.conf")
    kept = [line for line in conf.splitlines() if line.partition("=")[0] not in _SETTINGS]
    lines = [*kept, *(f"{key}={value}" for key, value in _SETTINGS.items())]
    daemons.inside("sh", "-c", 'printf "%s\\n" "$1" >/etc/slurm/slurm.conf', "sh", "\n".join(lines))
    _says(daemons, "sacctmgr show cluster", "Cluster")
    manage(daemons, "add", "cluster", "box")
    daemons.end(CONTROLLER)
    daemons.inside("rm", "/var/box/state/clustername")  # the number that it gave itself is not the database's
    daemons.start()
    for node in daemons.box.spec.node_names:
        daemons.restart(node)
    _says(daemons, "sacctmgr --noheader show tres type=gres", "gpu")  # the controller has reported its GPUs
    for node in daemons.box.spec.node_names:
        daemons.await_up(node)


def manage(daemons: Daemons, *words: str) -> None:
    daemons.inside("sacctmgr", "--immediate", *words)


def _says(daemons: Daemons, command: str, words: str) -> None:
    """Wait until the command prints the words; it may fail meanwhile."""
    until(
        lambda: words in daemons.inside("sh", "-c", f"{command} 2>&1 || true"),
        f"{command} says {words}", timeout_s=120, every_s=0.3,
    )  # fmt: skip
