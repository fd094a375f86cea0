"""What a stage's processes did when it had to be ended, and what the stages measured of themselves."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("result", sa.Column("stack_dump", sa.Text(), nullable=True))
    op.add_column("result", sa.Column("timings", sa.JSON(), nullable=True))
