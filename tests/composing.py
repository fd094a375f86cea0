"""How tests make cells of a command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from hydra_plugins.paritylab import ParitylabSweeper

from runner import cells, compose, paths, schema


@contextmanager
def hydra() -> Iterator:
    """Hydra's loader of conf/, with this project's plugins."""
    Plugins.instance().register(ParitylabSweeper)
    ConfigStore.instance().store(name="schema", node=schema.Config, provider="paritylab")
    with initialize_config_dir(str(paths.CONF), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def sweep_of(loader, *arguments: str) -> list[cells.Cell]:
    master = loader.load_configuration("config", list(arguments), run_mode=RunMode.MULTIRUN)
    return compose.compose_sweep(loader, master, list(arguments))
