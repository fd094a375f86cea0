"""``python -m runner``: Hydra as the front door, this project's exit codes behind it.

0: every cell is ok. 1: some cell failed. 2: bad config, Hydra's own errors
too. 130: interrupted. 3: a fault of this program.
"""

from __future__ import annotations

import sys

from runner import paths

# Hydra finds plugins in the namespace `hydra_plugins` of any folder on the path.
sys.path.insert(0, str(paths.PROJECT / "runner" / "plugins"))

import hydra
from hydra.core.config_store import ConfigStore

from runner import compose, main, schema
from runner.failures import ConfigFailed

ConfigStore.instance().store(name="schema", node=schema.Config, provider="paritylab")


@hydra.main(config_path=str(paths.CONF), config_name="config", version_base="1.3")
def front_door(_config: object) -> None:
    """Never called: `hydra.mode` is MULTIRUN, so the sweeper gets every run."""


def start() -> None:
    try:
        sys.argv = ["python -m runner", *compose.options_first(sys.argv[1:])]
        compose.check_keys(sys.argv[1:], paths.CONF)
        front_door()  # returns only after --help, --cfg and the like
        code = main.OK
    except ConfigFailed as failure:
        main.complain(failure.message, failure.hint)
        code = main.BAD_CONFIG
    except main.Finished as finished:
        code = finished.code
    except SystemExit as stop:  # Hydra's own error, already printed
        code = main.BAD_CONFIG if stop.code else main.OK
    except KeyboardInterrupt:
        code = main.INTERRUPTED
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    start()
