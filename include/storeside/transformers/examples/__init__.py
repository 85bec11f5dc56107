"""Examples of transformers that users write."""
