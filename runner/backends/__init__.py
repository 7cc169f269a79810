"""What schedulers and runtimes have in common."""

from pathlib import Path

LEFTOVERS = Path(__file__).parent / "leftovers.sh"
