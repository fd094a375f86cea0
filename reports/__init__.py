"""Reports: each a file, from stored cells to a table."""
