"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "environment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash"),
    )
    op.create_table(
        "machine",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("system", sa.Text(), nullable=False),
        sa.Column("processor", sa.Text(), nullable=False),
        sa.Column("cores", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash"),
    )
    op.create_table(
        "metric_name",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "sweep",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("overrides", sa.JSON(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "package",
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environment.id"],
        ),
        sa.PrimaryKeyConstraint("environment_id", "name"),
    )
    op.create_table(
        "result",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("measurement_version", sa.Integer(), nullable=False),
        sa.Column("stand_in", sa.Text(), nullable=True),
        sa.Column("failed_stage", sa.Text(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_frame", sa.Text(), nullable=True),
        sa.Column("hint", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Text(), nullable=True),
        sa.Column("stderr_tail", sa.Text(), nullable=True),
        sa.Column("peak_memory_bytes", sa.Integer(), nullable=True),
        sa.Column("checkpoint_hash", sa.Text(), nullable=True),
        sa.Column("checkpoint_dtype", sa.Text(), nullable=True),
        sa.Column("reference_dtype", sa.Text(), nullable=True),
        sa.Column("candidate_dtype", sa.Text(), nullable=True),
        sa.Column("prompts_key", sa.Text(), nullable=True),
        sa.Column("overlay_tree", sa.Text(), nullable=True),
        sa.Column("machine_id", sa.Integer(), nullable=True),
        sa.Column("builder_environment_id", sa.Integer(), nullable=True),
        sa.Column("runtime_environment_id", sa.Integer(), nullable=True),
        sa.Column("reference_environment_id", sa.Integer(), nullable=True),
        sa.Column("prompts_count", sa.Integer(), nullable=False),
        sa.Column("identical_count", sa.Integer(), nullable=False),
        sa.Column("sensible_count", sa.Integer(), nullable=True),
        sa.Column("candidate_sensible_count", sa.Integer(), nullable=True),
        sa.Column("first_diff_least", sa.Double(), nullable=True),
        sa.Column("first_diff_largest", sa.Double(), nullable=True),
        sa.Column("diff_least", sa.Double(), nullable=True),
        sa.Column("diff_largest", sa.Double(), nullable=True),
        sa.Column("non_finite_count", sa.Integer(), nullable=False),
        sa.Column("noise_ratio_largest", sa.Double(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["builder_environment_id"],
            ["environment.id"],
        ),
        sa.ForeignKeyConstraint(
            ["machine_id"],
            ["machine.id"],
        ),
        sa.ForeignKeyConstraint(
            ["reference_environment_id"],
            ["environment.id"],
        ),
        sa.ForeignKeyConstraint(
            ["runtime_environment_id"],
            ["environment.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_result_hash", "result", ["hash", "status"], unique=False)
    op.create_table(
        "cell",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sweep_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("layers", sa.Text(), nullable=False),
        sa.Column("builder", sa.Text(), nullable=False),
        sa.Column("patch", sa.Text(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("precision", sa.Text(), nullable=False),
        sa.Column("prompts", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("max_new_tokens", sa.Text(), nullable=False),
        sa.Column("threads", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("source_commit", sa.Text(), nullable=True),
        sa.Column("source_dirty", sa.Boolean(), nullable=True),
        sa.Column("patch_hash", sa.Text(), nullable=True),
        sa.Column("patch_outcome", sa.Text(), nullable=True),
        sa.Column("result_id", sa.Integer(), nullable=True),
        sa.Column("found", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["result_id"],
            ["result.id"],
        ),
        sa.ForeignKeyConstraint(
            ["sweep_id"],
            ["sweep.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sweep_id", "position"),
    )
    op.create_index("ix_cell_factors", "cell", ["model", "builder", "patch", "dtype"], unique=False)
    op.create_index(op.f("ix_cell_hash"), "cell", ["hash"], unique=False)
    op.create_index("ix_cell_result", "cell", ["result_id"], unique=False)
    op.create_table(
        "prompt_result",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("result_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("first_logits_max_abs_diff", sa.Double(), nullable=True),
        sa.Column("logits_max_abs_diff", sa.Double(), nullable=True),
        sa.Column("matched_tokens", sa.Integer(), nullable=False),
        sa.Column("compared_tokens", sa.Integer(), nullable=False),
        sa.Column("tokens_identical", sa.Boolean(), nullable=False),
        sa.Column("forced_logits_max_abs_diff", sa.Double(), nullable=True),
        sa.Column("noise_floor", sa.Double(), nullable=True),
        sa.Column("noise_ratio", sa.Double(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("sensible", sa.Boolean(), nullable=True),
        sa.Column("candidate_sensible", sa.Boolean(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reference_range", sa.Double(), nullable=True),
        sa.Column("reference_vocab", sa.Integer(), nullable=False),
        sa.Column("candidate_vocab", sa.Integer(), nullable=False),
        sa.Column("reference_text", sa.Text(), nullable=False),
        sa.Column("candidate_text", sa.Text(), nullable=False),
        sa.Column("non_finite", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["result_id"],
            ["result.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("result_id", "position"),
    )
    op.create_table(
        "stage_run",
        sa.Column("result_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("found", sa.Boolean(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("peak_memory_bytes", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["result_id"],
            ["result.id"],
        ),
        sa.PrimaryKeyConstraint("result_id", "position"),
    )
    op.create_table(
        "change_outcome",
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cell_id"],
            ["cell.id"],
        ),
        sa.PrimaryKeyConstraint("cell_id", "position"),
    )
    op.create_table(
        "metric_value",
        sa.Column("prompt_result_id", sa.Integer(), nullable=False),
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["metric_id"],
            ["metric_name.id"],
        ),
        sa.ForeignKeyConstraint(
            ["prompt_result_id"],
            ["prompt_result.id"],
        ),
        sa.PrimaryKeyConstraint("prompt_result_id", "metric_id", "step"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("metric_value")
    op.drop_table("change_outcome")
    op.drop_table("stage_run")
    op.drop_table("prompt_result")
    op.drop_index("ix_cell_result", table_name="cell")
    op.drop_index(op.f("ix_cell_hash"), table_name="cell")
    op.drop_index("ix_cell_factors", table_name="cell")
    op.drop_table("cell")
    op.drop_index("ix_result_hash", table_name="result")
    op.drop_table("result")
    op.drop_table("package")
    op.drop_table("sweep")
    op.drop_table("metric_name")
    op.drop_table("machine")
    op.drop_table("environment")
