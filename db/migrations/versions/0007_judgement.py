"""What a verdict needs beside the numbers: how many tokens were compared, what else was found wrong."""

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    pass
