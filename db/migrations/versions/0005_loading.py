"""What became of each key of a checkpoint where a side loaded it, and the artifact of a checkpoint that was made."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("result", sa.Column("model_key", sa.Text(), nullable=True))
    op.create_table(
        "loaded_tensor",
        sa.Column("loading_key", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("loader", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("layers", sa.JSON(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("shape", sa.JSON(), nullable=True),
        sa.Column("held", sa.JSON(), nullable=True),
        sa.Column("stored", sa.Text(), nullable=True),
        sa.Column("loaded", sa.Text(), nullable=True),
        sa.Column("says", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("loading_key", "position"),
    )
