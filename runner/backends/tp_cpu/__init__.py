"""transformers, divided among processes of this machine."""
