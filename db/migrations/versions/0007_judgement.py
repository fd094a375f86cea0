"""What a verdict needs beside the numbers: how many tokens were compared, what else was found wrong."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

# Failures of the moment that older versions took for final: NumPy's own kind of MemoryError, a process that could not
# write how it ended, and words of libraries about space and memory.
WORDS = (
    "no space left", "quota exceeded", "requested and % written", "file write failed", "allocate memory", "bad_alloc",
    "out of memory", "unable to allocate", "too many open files", "input/output error", "start new thread",
)  # fmt: skip
SAID = " OR ".join(
    f"lower(coalesce({column}, '')) LIKE '%{word}%'" for word in WORDS for column in ("error", "stderr_tail")
)
NOT_FINAL = f"""
UPDATE result SET final = false WHERE final AND status <> 'ok' AND (
    error_type IN ('_ArrayMemoryError', 'OutOfMemoryError', 'TimeoutError', 'InterruptedError', 'BrokenPipeError',
        'ConnectionError', 'ConnectionRefusedError', 'ConnectionResetError', 'ConnectionAbortedError')
    OR (error_type = 'Exit' AND exit_code = 70) OR {SAID}
)
"""
# Cells that failed for a reason of the moment, or in a stage that is not the export's, were entered among pairs.
NO_FINDINGS = """
DELETE FROM cell_rest WHERE cell_id IN (
    SELECT cell.id FROM cell JOIN result ON result.id = cell.result_id
    WHERE result.status <> 'ok' AND NOT (
        result.final AND result.status IN ('export_failed', 'load_failed', 'run_failed')
        AND (result.failed_stage IS NULL OR result.failed_stage IN ('export', 'candidate'))
    )
)
"""


def upgrade() -> None:
    # Of results that are there the prompts are not read: their tables have no number of tokens.
    op.add_column("result", sa.Column("compared_tokens_least", sa.Integer(), nullable=True))
    op.add_column("result", sa.Column("compared_tokens_largest", sa.Integer(), nullable=True))
    op.create_table(
        "source_commit",
        sa.Column("commit", sa.Text(), nullable=False),
        sa.Column("date", sa.DateTime(timezone=True), nullable=False),
        sa.Column("releases", sa.JSON(), nullable=False),
        sa.Column("ancestors", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("commit"),
    )
    op.add_column("result", sa.Column("constants_wrong", sa.Integer(), nullable=True))
    for name, kind in (
        ("reservations", sa.JSON()), ("settings_key", sa.Text()), ("own_way", sa.Text()), ("own_way_detail", sa.JSON()),
    ):  # fmt: skip
        op.add_column("result", sa.Column(name, kind, nullable=True))
    op.create_table(
        "generation_setting",
        sa.Column("settings_key", sa.Text(), primary_key=True),
        sa.Column("position", sa.Integer(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("export", sa.Text(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("weight", sa.Text(), nullable=False),
        sa.Column("says", sa.Text(), nullable=False),
    )
    op.execute(
        "UPDATE result SET constants_wrong = (SELECT count(*) FROM constant_value"
        " WHERE constant_value.constants_key = result.constants_key"
        " AND constant_value.verdict IN ('differs', 'dropped', 'added')) WHERE constants_key IS NOT NULL"
    )
    op.execute(NOT_FINAL)
    op.execute(NO_FINDINGS)
