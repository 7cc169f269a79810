"""What ``site check`` says of a site file that reads well and is not right."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.errors import UsageError
from runner.preparation.site_check import check_site


def test_a_runtime_that_does_not_exist_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ndescription: d\nextends: slurm\nruntimes: [native, apptainre]\n"
                    "node: {gpus: 4, cores: 64, memory_mb: 1000}\n")  # fmt: skip
    with pytest.raises(UsageError, match="no runtime named 'apptainre'") as failure:
        check_site(str(path), offline=True, on_node=False, options=())
    assert failure.value.fix == "did you mean 'apptainer'?"
