"""Bundles taken apart and put together again, by a forger who knows the format as well as this project does."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.core.files import sha256
from runner.figures.bundle import bag
from runner.figures.bundle.making import TOP

Members = dict[str, bytes]


def members_of(file: Path) -> Members:
    """Name below the top directory -> content."""
    content = file.read_bytes()
    return {name.removeprefix(f"{TOP}/"): each for name, each in bag.read(io.BytesIO(content), len(content))}


def write_members(file: Path, members: Members) -> None:
    """Write exactly these members, whatever their manifests say."""
    with file.open("wb") as out:
        bag.write(out, [(f"{TOP}/{name}", content) for name, content in members.items()])


def forged(file: Path, change: Callable[[Members], None]) -> None:
    """Change the payload (names below ``data/``), and make every manifest fit again; a signature is kept as it was."""
    members = members_of(file)
    payload = {name.removeprefix("data/"): each for name, each in members.items() if name.startswith("data/")}
    change(payload)
    digests = {name: sha256(content) for name, content in payload.items()}
    tags = bag.tag_files(digests, sum(map(len, payload.values())))
    kept = {name: each for name, each in members.items() if name == bag.SIGNATURE}
    write_members(file, {f"data/{name}": each for name, each in payload.items()} | tags | kept)


def edited(name: str, change: Callable[[Any], Any]) -> Callable[[Members], None]:
    """A change of the JSON file whose name ends so: of the value, in place, or by the one that is returned."""

    def change_file(payload: Members) -> None:
        file = next(each for each in sorted(payload) if each.endswith(name))
        value = json.loads(payload[file])
        returned = change(value)
        payload[file] = json.dumps(value if returned is None else returned).encode()

    return change_file
