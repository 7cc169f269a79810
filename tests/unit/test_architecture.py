"""The pages against the code: docs/architecture.md lists the import contract's layers, every path that a page names for
contributors exists, and so does what any page links to.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = "docs/architecture.md"
# A path of the repository in backticks.
PATH = re.compile(r"`((?:runner|recipes|containers|tests|benchmarks|docs)/[\w./-]+)`")


def contract(name: str) -> list[list[str]]:
    """The layers of an import contract in pyproject.toml, top first; neighbours together."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    found = re.search(rf'^name = "{name}:.*?^layers = \[(.*?)^\]', text, re.MULTILINE | re.DOTALL)
    assert found
    return [re.split(r" [:|] ", layer) for layer in re.findall(r'"([^"]+)"', found[1])]


def layers_after(before: str) -> list[list[str]]:
    """The names at the head of each line of the page's list after this sentence."""
    text = (ROOT / PAGE).read_text("utf-8")
    _, found, rest = text.partition(f"{before}\n\n")
    assert found, f"no list after {before}"
    heads = re.findall(r"^- (.*?):", rest.partition("\n\n")[0], re.MULTILINE)
    return [re.findall(r"`([\w.]+)`", head) for head in heads]


def test_the_page_lists_the_layers_of_the_import_contract_in_its_order() -> None:
    assert layers_after("by the contract in `pyproject.toml`.") == contract("Layers")


def test_the_page_lists_the_layers_of_images_in_the_contracts_order() -> None:
    assert layers_after("Images have layers, too, in `runner/images`:") == contract("Images")


def test_every_module_and_folder_of_the_toolkit_is_in_a_layer() -> None:
    layered = {name for row in contract("Layers") for name in row}
    present = {
        f"runner.{path.stem}"
        for path in (ROOT / "runner").iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__")) or (path / "__init__.py").exists()
    }
    assert layered == present


@pytest.mark.parametrize("page", [PAGE, "CONTRIBUTING.md"])
def test_a_path_that_a_page_names_exists(page: str) -> None:
    """But for those with NAME in them: a place for something new."""
    named = {path for path in PATH.findall((ROOT / page).read_text("utf-8")) if "NAME" not in path}
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text("utf-8"))
    assert [link for link in links if not is_there(page.parent / link[0] if link[0] else page, link[1])] == []


def test_the_site_lists_every_page() -> None:
    listed = (ROOT / "runner/setup/pages/mkdocs.yml").read_text("utf-8")
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f" {page}\n" not in listed] == []


def test_what_runs_in_images_makes_no_value_by_a_subscripted_type() -> None:
    """As ``set[int]()``: Python 3.8 has no such types, and images may have that; no linter here says it."""
    paths = (path for name in ("recipes/lib", "containers") for path in (ROOT / name).rglob("*.py"))
    nodes = ((path, node) for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    types = (
        (path, node.func) for path, node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    )
    builtin = ("dict", "frozenset", "list", "set", "tuple", "type")
    assert [f"{path.name}:{each.lineno}" for path, each in types if ast.unparse(each.value) in builtin] == []


def test_the_pages_are_short() -> None:
    pages = (page for page in (ROOT / "docs").rglob("*.md") if page.name != "proofs.md")  # `make proofs` writes it
    assert sum(len(page.read_text("utf-8").split()) for page in pages) <= 27_000, "shorten any page"
    assert [
        page for page in ("README.md", "CONTRIBUTING.md") if len((ROOT / page).read_text("utf-8").split()) > 900
    ] == []


def is_there(path: Path, heading: str) -> bool:
    """Whether the page or folder exists, and the heading or named place in it, if one is named."""
    if not heading or not path.exists():
        return path.exists()
    text = path.read_text("utf-8")
    titles = (re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M))
    return heading in {*titles, *re.findall(r'<a name="([^"]+)">', text)}
