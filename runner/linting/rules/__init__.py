"""The rules of the eight steps: each registers itself (`findings.rule`), and says of a script what it sees first."""

from runner.linting.rules import data, gradients, output

__all__ = ["data", "gradients", "output", "start"]
