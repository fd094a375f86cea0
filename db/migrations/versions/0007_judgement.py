"""What a verdict needs beside the numbers: how many tokens were compared, what else was found wrong."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

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
    op.add_column("result", sa.Column("constants_wrong", sa.Integer(), nullable=True))
    op.add_column("result", sa.Column("reservations", sa.JSON(), nullable=True))
    op.execute(
        "UPDATE result SET constants_wrong = (SELECT count(*) FROM constant_value"
        " WHERE constant_value.constants_key = result.constants_key"
        " AND constant_value.verdict IN ('differs', 'dropped', 'added')) WHERE constants_key IS NOT NULL"
    )
    op.execute(NO_FINDINGS)
