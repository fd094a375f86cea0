"""transformers as the candidate."""
