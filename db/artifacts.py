"""The tables of what artifacts hold: rows that results share, under their artifact's key."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# What can become of a key: `LOADING_FAULTS` first, then what is only to be warned of, then what is as it should be.
OUTCOMES = (
    "defaulted", "differs", "dropped", "loaded", "cast", "sharded", "replicated", "copied", "converted", "tied",
    "computed",
)  # fmt: skip
LOADING_FAULTS = OUTCOMES[:2]


class Base(DeclarativeBase):
    type_annotation_map = {
        str: Text,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSON,
        list[Any]: JSON,
    }


class Overlay(Base):
    """What a patch made of a builder's sources; the rows that cells with this tree share."""

    __tablename__ = "overlay"

    tree: Mapped[str] = mapped_column(primary_key=True)
    source_tree: Mapped[str]
    diff: Mapped[str]  # unified, of the models folder; empty where the patch changed nothing


class PromptInput(Base):
    """What a prompt was to both sides; the rows of a prompts artifact, which results share."""

    __tablename__ = "prompt_input"

    prompts_key: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    prompt: Mapped[str]
    text: Mapped[str]  # after the template
    ids: Mapped[list[Any]]
    template_source: Mapped[str | None]
    template_hash: Mapped[str | None]


class NoiseValue(Base):
    """How far a variant of the reference moved from it, at one prompt; the rows of a noise artifact.

    A variant that was left out has one row with the reason and no numbers.
    """

    __tablename__ = "noise_value"

    noise_key: Mapped[str] = mapped_column(primary_key=True)
    variant: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    prompt: Mapped[str | None]
    versus: Mapped[str | None]
    first: Mapped[float | None]
    largest: Mapped[float | None]
    left_out: Mapped[str | None]


# Verdicts on a constant that say that it is wrong.
CONSTANT_FAULTS = ("dropped", "added", "differs")


class ConstantValue(Base):
    """A constant of an export beside what transformers computes; the rows of a constants artifact."""

    __tablename__ = "constant_value"

    constants_key: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]  # rope, norm_weight, embedding_scale, …
    what: Mapped[str]
    layers: Mapped[list[Any] | None]
    reference: Mapped[str | None]
    export: Mapped[str | None]
    max_abs_diff: Mapped[float | None]
    positions: Mapped[int | None]
    verdict: Mapped[str]  # same, rounded, differs, dropped, added, unread
    says: Mapped[str]


class GenerationSetting(Base):
    """What an export tells its runtime of generating, beside the checkpoint's; the rows of a candidate's artifact."""

    __tablename__ = "generation_setting"

    settings_key: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]  # eos_token_id, chat_template, …
    reference: Mapped[str | None]  # JSON
    export: Mapped[str | None]  # JSON
    verdict: Mapped[str]  # same, differs, missing in the export, only in the export, not compared
    weight: Mapped[str]  # warning, note
    says: Mapped[str]


class LoadedTensor(Base):
    """What became of a key of the checkpoint where a side loaded it; the rows of the side's artifact."""

    __tablename__ = "loaded_tensor"

    loading_key: Mapped[str] = mapped_column(primary_key=True)  # of a reference, candidate or model artifact
    position: Mapped[int] = mapped_column(primary_key=True)
    loader: Mapped[str]  # transformers, tp_cpu, GGUF
    name: Mapped[str]  # model.layers.*.layer_scalar
    layers: Mapped[list[Any] | None]
    count: Mapped[int]  # of tensors
    kind: Mapped[str]  # parameter, buffer; empty where neither is known
    outcome: Mapped[str]  # one of `OUTCOMES`
    shape: Mapped[list[Any] | None]  # in the checkpoint
    held: Mapped[list[Any] | None]  # the shape that the model or rank holds
    stored: Mapped[str | None]  # dtype in the checkpoint
    loaded: Mapped[str | None]  # dtype in the model or rank
    says: Mapped[str]
