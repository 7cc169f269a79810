"""Progress that keeps its texts and amounts."""

from runner.core.progress import Silent


class Heard(Silent):
    """steps, lines: their texts. amounts: what was done, and of how much."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []
        self.amounts: list[tuple[int, int | None]] = []

    def step(self, text: str, done: int | None = None, total: int | None = None) -> None:
        self.steps.append(text)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def moved(self, done: int, total: int | None) -> None:
        self.amounts.append((done, total))
