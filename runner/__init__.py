"""paritylab's runner: from a Hydra config to cells, from cells to stages, from stages to rows."""
