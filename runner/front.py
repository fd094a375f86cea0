"""The front door: Hydra's command line, with this project's exit codes behind it.

0: every cell is ok. 1: some cell failed. 2: bad config, Hydra's own errors
too. 130: interrupted. 3: a fault of this program.
"""

from __future__ import annotations

import signal
import sys

import hydra
from hydra.core.config_store import ConfigStore

from runner import compose, main, paths, schema
from runner.failures import ConfigFailed

ConfigStore.instance().store(name="schema", node=schema.Config, provider="paritylab")


@hydra.main(config_path=str(paths.CONF), config_name="config", version_base="1.3")
def front_door(_config: object) -> None:
    """Never reached: `hydra.mode` is MULTIRUN and the sweeper this project's, which gets every run."""
    raise ConfigFailed("hydra/sweeper and hydra.mode are not to be changed", hint="leave them out")


def start() -> None:
    """Run the command line and exit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")
    # Hydra finds plugins in the namespace `hydra_plugins` of any folder on the path.
    sys.path.insert(0, str(paths.PROJECT / "runner" / "plugins"))
    sys.argv = ["python -m runner", *compose.options_first(sys.argv[1:])]
    sys.exit(run())


def run() -> int:
    """Let Hydra have the command line. Returns the exit code."""
    try:
        compose.check_keys(sys.argv[1:], paths.CONF)
        front_door()  # returns only after --help, --cfg and the like
        return main.OK
    except ConfigFailed as failure:
        main.complain(failure.message, failure.hint)
        return main.BAD_CONFIG
    except main.Finished as finished:
        return finished.code
    except SystemExit as stop:  # Hydra's own error, already printed
        return main.BAD_CONFIG if stop.code else main.OK
    except KeyboardInterrupt:
        return main.INTERRUPTED
