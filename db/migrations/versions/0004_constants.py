"""Constants of exports, what a sweep did with its cells, and where a checkpoint is from."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("sweep", sa.Column("action", sa.Text(), nullable=False, server_default="run"))
    op.add_column("cell", sa.Column("checkpoint_origin", sa.Text(), nullable=True))
    op.add_column("result", sa.Column("constants_key", sa.Text(), nullable=True))
    op.create_table(
        "constant_value",
        sa.Column("constants_key", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("layers", sa.JSON(), nullable=True),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("export", sa.Text(), nullable=True),
        sa.Column("max_abs_diff", sa.Double(), nullable=True),
        sa.Column("positions", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("says", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("constants_key", "position"),
    )
