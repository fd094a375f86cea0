"""A folder for an upstream maintainer: what a claim's newest cells measured, and how to see it without this project.

`write` makes it. `folder/` has the scripts that go into it as they are: they import nothing of this project.
"""

from reports.evidence.place import OutRefused
from reports.evidence.write import ENCLOSE_UP_TO, write

__all__ = ["ENCLOSE_UP_TO", "OutRefused", "write"]
