"""Where this machine has a Pyxis and an Enroot, which no package of Debian has, and a box with both.

Looked for in ``ENROOT_PREFIX``, /usr/local and /opt/enroot: ``bin/enroot`` and ``lib/slurm/spank_pyxis.so``.
"""

import os
from pathlib import Path

from runner.box import Bind, BoxSpec

PLACES = filter(None, (os.environ.get("ENROOT_PREFIX"), "/usr/local", "/opt/enroot"))
FOUND = [
    prefix
    for prefix in map(Path, PLACES)
    if (prefix / "bin/enroot").exists() and (prefix / "lib/slurm/spank_pyxis.so").exists()
][:1]
_ON_THE_NODES_DISK = "".join(
    f"ENROOT_{name}_PATH /var/tmp/enroot-{name.lower()}-$(id -u)\n" for name in ("DATA", "CACHE", "RUNTIME")
)


def box_spec(name: str, prefix: Path, configuration: Path | None, *plugin_options: str) -> BoxSpec:
    """A box whose Enroot keeps its data on each node's own disk.

    Args:
        configuration: an empty directory; None: the data lie where a plain ``make install`` leaves them, in the home
            that the nodes share.
    """
    spank = " ".join((f"required {prefix}/lib/slurm/spank_pyxis.so runtime_path=/run/pyxis", *plugin_options))
    binds = [Bind(str(prefix), str(prefix)), Bind(str(prefix / "bin"), "/usr/local/bin")]
    if configuration is not None:
        configuration.chmod(0o755)
        (configuration / "paths.conf").write_text(_ON_THE_NODES_DISK)
        binds.append(Bind(str(configuration), f"{prefix}/etc/enroot/enroot.conf.d"))
    return BoxSpec(name=name, spank=(spank,), binds=tuple(binds))
