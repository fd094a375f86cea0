"""This project's Hydra plugin: the sweeper. Hydra finds it here because of the namespace."""

from __future__ import annotations

from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ParitylabSweeper(Sweeper):
    """Composes every cell once and hands the list to `runner.main`."""

    def __init__(self) -> None:
        self.context: HydraContext | None = None
        self.config: DictConfig | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.config = hydra_context, config

    def sweep(self, arguments: list[str]) -> Any:
        from runner import main

        assert self.context is not None and self.config is not None
        raise main.Finished(main.act(self.context.config_loader, self.config, arguments))


ConfigStore.instance().store(
    group="hydra/sweeper",
    name="paritylab",
    node={"_target_": "hydra_plugins.paritylab.ParitylabSweeper"},
    provider="paritylab",
)
