"""What a verdict needs beside the numbers: how many tokens were compared, what else was found wrong."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("result", sa.Column("constants_wrong", sa.Integer(), nullable=True))
    op.execute(
        "UPDATE result SET constants_wrong = (SELECT count(*) FROM constant_value"
        " WHERE constant_value.constants_key = result.constants_key"
        " AND constant_value.verdict IN ('differs', 'dropped', 'added')) WHERE constants_key IS NOT NULL"
    )
