"""The results database: schema, migrations, recording, queries."""

from db.frames import frame

__all__ = ["frame"]
