"""Where a run comes from: the command line that submitted it, and the user's code at that moment."""

from __future__ import annotations

import msgspec


class CommandLine(msgspec.Struct, frozen=True):
    """The command that submitted a run (``command.json``).

    Attributes:
        arguments: the command's name and its arguments, exactly as they were typed, for a reader; empty for a run from
            Python. Runs without ``request.json`` have no other record of what was asked for.
        directory: the working directory that relative paths among them mean.
        site: the site that was used where the arguments name none; empty where they do.
        rerun_of: id of the run that this one repeats; empty for none.
    """

    arguments: tuple[str, ...]
    directory: str
    site: str = ""
    rerun_of: str = ""


class CodeRecord(msgspec.Struct, frozen=True):
    """The user's code when a run was submitted (``code.json``), as git describes it.

    Attributes:
        repository: top directory of the git repository; empty where the program is in none.
        commit: of HEAD; empty for a repository without commits. branch: empty where HEAD is detached.
        dirty: tracked files differ from the commit; None where that is unknown.
        changed: these files, below the repository; at most 1000 of them.
        binary: of these, those that are not text. too_long: those whose diff did not fit. Neither is in the kept diff.
        redacted: number of places in the kept diff that looked like secrets and were replaced.
        diff_kept: ``code.diff`` has the difference.
        untracked: the program's own file, where git does not track it: the commit says nothing about it.
        problem: what could not be recorded, and why; empty if nothing.
    """

    repository: str = ""
    commit: str = ""
    branch: str = ""
    dirty: bool | None = None
    changed: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    too_long: tuple[str, ...] = ()
    redacted: int = 0
    diff_kept: bool = False
    untracked: str = ""
    problem: str = ""


class NodeShare(msgspec.Struct, frozen=True):
    """A node that ranks of a run began on.

    Attributes:
        ranks: those on it. gpus: numbers of the node's GPUs that they had; empty where nothing said.
    """

    name: str
    ranks: tuple[int, ...]
    gpus: tuple[int, ...] = ()


class RunDetails(msgspec.Struct, frozen=True):
    """What ``show`` adds to the facts about a run.

    Attributes:
        command_line: that submitted it, without the values of secret names; empty where none was recorded.
        typed_in: the working directory of that command.
        rerun_of: id of the run that it repeats; empty for none.
        code: the user's code; null where none was recorded (a shipped recipe, or a run that is older).
        code_diff: path of what differs from the commit; empty where that was not kept.
        code_copy: path of the copy that the program ran from (``--snapshot``); empty where it ran where it was.
        image_digest, image_file, image_sha256: of the image that ran; empty where unknown, or where there is none.
        node_list: where ranks began. allocated: in the scheduler's notation, what the job got; empty where unknown.
        forced: codes of the checks that refused it and were overridden.
    """

    command_line: tuple[str, ...]
    typed_in: str
    rerun_of: str
    code: CodeRecord | None
    code_diff: str
    code_copy: str
    image_digest: str
    image_file: str
    image_sha256: str
    node_list: tuple[NodeShare, ...]
    allocated: str
    forced: tuple[str, ...]
