"""The results database: schema, migrations, recording, queries."""
