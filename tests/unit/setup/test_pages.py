"""The site of the pages: it has all of them, and its hook makes GitHub's Markdown what Python-Markdown reads."""

import re
from pathlib import Path

from runner.setup.pages.github_markdown import for_python_markdown

GITHUB = """\
**Heading**
- one
  more of one
- two

Text.

1. First:

       code
2. Second
   more

```sh
- no item
```
"""
PYTHON = """\
**Heading**

- one
    more of one
- two

Text.

1. First:

        code

2. Second
    more

```sh
- no item
```
"""


def test_lists_get_blank_lines_and_indents() -> None:
    assert for_python_markdown(GITHUB) == PYTHON


def test_the_site_lists_every_page_once() -> None:
    root = Path(__file__).resolve().parents[3]
    config = (root / "runner/setup/pages/mkdocs.yml").read_text()
    pages = [path.relative_to(root).as_posix() for path in (*root.glob("*.md"), *(root / "docs").rglob("*.md"))]
    assert sorted(re.findall(r"(\S+\.md)$", config, re.MULTILINE)) == sorted(pages), (
        "nav of runner/setup/pages/mkdocs.yml"
    )
