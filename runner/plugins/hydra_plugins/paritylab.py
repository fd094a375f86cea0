"""This project's Hydra plugins. Hydra finds them here because of the namespace."""

from __future__ import annotations

from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf

GROUP = "builder"


class ParitylabSweeper(Sweeper):
    """Composes every cell once and hands the list to `runner.main`."""

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        """params: {key: values to sweep} of an experiment; the command line's come before them."""
        self.params = dict(params or {})
        self.context: HydraContext | None = None
        self.config: DictConfig | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.config = hydra_context, config

    def sweep(self, arguments: list[str]) -> Any:
        from runner import main

        assert self.context is not None and self.config is not None
        loader, config = self.context.config_loader, self.config
        given = {argument.partition("=")[0] for argument in arguments}
        axes = [f"{key}={values}" for key, values in self.params.items() if key not in given]
        if not all(o.is_sweep_override() for o in OverridesParser.create(config_loader=loader).parse_overrides(axes)):
            # One value is no axis: it belongs to the config, which Hydra composed without it.
            known = config.hydra.overrides.hydra
            config = loader.load_configuration(
                config.hydra.job.config_name, [*known, *axes, *arguments], run_mode=RunMode.MULTIRUN
            )
        raise main.Finished(main.act(loader, config, [*axes, *arguments]))


class ReleasesSource(ConfigSource):
    """``builder=X.Y.Z`` for every published release, without a file each."""

    @staticmethod
    def scheme() -> str:
        return "releases"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", GROUP)

    def is_config(self, config_path: str) -> bool:
        return self.version_of(config_path) is not None

    def version_of(self, config_path: str) -> str | None:
        from runner import releases

        group, _, name = config_path.strip("/").partition("/")
        name = name.removesuffix(".yaml")
        return name if group == GROUP and releases.accepts(name) else None

    def load_config(self, config_path: str) -> ConfigResult:
        version = self.version_of(config_path)
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://{self.path}",
            config=OmegaConf.create({"name": version, "kind": "release", "version": version}),
            header={"package": GROUP},
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        from runner import releases

        if config_path.strip("/") == "":
            return [GROUP] if results_filter in (None, ObjectType.GROUP) else []
        wanted = config_path.strip("/") == GROUP and results_filter in (None, ObjectType.CONFIG)
        return releases.versions() if wanted else []


class ReleasesSearchPath(SearchPathPlugin):
    """Puts the releases on Hydra's search path, behind the files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="paritylab", path="releases://")


ConfigStore.instance().store(
    group="hydra/sweeper",
    name="paritylab",
    node={"_target_": "hydra_plugins.paritylab.ParitylabSweeper", "params": {}},
    provider="paritylab",
)
