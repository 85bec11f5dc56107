"""Examples of a user's own transformers."""
