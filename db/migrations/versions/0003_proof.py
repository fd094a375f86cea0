"""What proofs stand on: sources, what each change does, pairs that differ in one axis, items and claims."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("cell", sa.Column("source_tree", sa.Text(), nullable=True))
    op.add_column("change_outcome", sa.Column("hash", sa.Text(), nullable=True))
    op.add_column("result", sa.Column("multiple_largest", sa.Double(), nullable=True))
    op.create_table(
        "cell_rest",
        sa.Column("axis", sa.Integer(), nullable=False),
        sa.Column("rest", sa.BigInteger(), nullable=False),
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["cell_id"], ["cell.id"]),
        sa.PrimaryKeyConstraint("axis", "rest", "cell_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "overlay",
        sa.Column("tree", sa.Text(), nullable=False),
        sa.Column("source_tree", sa.Text(), nullable=False),
        sa.Column("diff", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tree"),
    )
    op.create_table(
        "item",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("link", sa.Text(), nullable=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "item_state",
        sa.Column("item_key", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("date", sa.Text(), nullable=False),
        sa.Column("recorded", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["item_key"], ["item.key"]),
        sa.PrimaryKeyConstraint("item_key", "position"),
    )
    op.create_table(
        "claim",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("item_key", sa.Text(), nullable=True),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("filters", sa.JSON(), nullable=False),
        sa.Column("expect", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["item_key"], ["item.key"]),
        sa.PrimaryKeyConstraint("name"),
    )
