"""The hook that makes GitHub's Markdown what Python-Markdown reads."""

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
