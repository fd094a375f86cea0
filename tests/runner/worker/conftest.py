"""The worker's modules import each other by plain name, as they do in a cell's environment."""

from __future__ import annotations

import sys

from runner import paths

sys.path.insert(0, str(paths.WORKER))
