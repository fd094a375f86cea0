"""``python -m runner``: see `runner.front`."""

from __future__ import annotations

import os
import signal

# Until everything is imported there is nothing to tidy up after Ctrl-C.
signal.signal(signal.SIGINT, lambda *_: os._exit(130))

if __name__ == "__main__":
    from runner.front import start

    start()
