"""Noise floors, prompts as they were given, findings, and what the verdicts stand on."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

RESULT = {
    "files_dtype": sa.Text(),
    "layer_count": sa.Integer(),
    "noise_key": sa.Text(),
    "thresholds": sa.JSON(),
    "overridden": sa.JSON(),
    "forced_diff_largest": sa.Double(),
    "nonsense_count": sa.Integer(),
    "noise_floor_largest": sa.Double(),
}
PROMPT_RESULT = {
    "forced_noise_ratio": sa.Double(),
    "within_bands": sa.Boolean(),
    "parting": sa.JSON(),
    "reference_outcome": sa.Text(),
}


def upgrade() -> None:
    for table, columns in (("result", RESULT), ("prompt_result", PROMPT_RESULT)):
        for name, kind in columns.items():
            op.add_column(table, sa.Column(name, kind, nullable=True))
    op.create_table(
        "finding",
        sa.Column("result_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=True),
        sa.Column("check", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["result_id"], ["result.id"]),
        sa.PrimaryKeyConstraint("result_id", "position"),
    )
    op.create_table(
        "prompt_input",
        sa.Column("prompts_key", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("ids", sa.JSON(), nullable=False),
        sa.Column("template_source", sa.Text(), nullable=True),
        sa.Column("template_hash", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("prompts_key", "position"),
    )
    op.create_table(
        "noise_value",
        sa.Column("noise_key", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=True),
        sa.Column("versus", sa.Text(), nullable=True),
        sa.Column("first", sa.Double(), nullable=True),
        sa.Column("largest", sa.Double(), nullable=True),
        sa.Column("left_out", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("noise_key", "variant", "position"),
    )
