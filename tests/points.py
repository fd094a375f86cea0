"""Points of proofs made by hand: cells of one prompt or more, and designs by the letters of the changes made."""

from __future__ import annotations

from reports.proof.points import SAME, WRONG, Point, PromptPoint

LIMIT = 10.0


def prompt(multiple: float | None, text: int | None = SAME, name: str = "p", finite: bool = True) -> PromptPoint:
    within = multiple is not None and multiple <= LIMIT and not text
    return PromptPoint(name, within, multiple, text, LIMIT, finite)


def cell(*prompts: PromptPoint | float) -> Point:
    """Prompts by name p1, p2, …; a number is a prompt with the reference's text."""
    made = [prompt(found) if isinstance(found, int | float) else found for found in prompts]
    return Point(True, tuple(PromptPoint(f"p{n}", *list(vars(one).values())[1:]) for n, one in enumerate(made, 1)))


def point(multiple: float | None, right: bool = True) -> Point:
    """A cell of one prompt."""
    return cell(prompt(multiple, SAME if right else WRONG))


FAILED = Point(False)
NOT_FINITE = cell(prompt(None, WRONG, finite=False))
NO_FLOOR = point(None)


def design(**cells: Point) -> dict[frozenset[str], Point]:
    """By the letters of the changes made: none=…, a=…, ab=…."""
    return {frozenset(name) if name != "none" else frozenset(): found for name, found in cells.items()}
