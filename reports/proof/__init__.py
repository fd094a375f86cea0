"""What sets of cells prove: `collect` makes the report as data, `markdown` shows it."""

from reports.proof.report import collect, markdown

__all__ = ["collect", "markdown"]
