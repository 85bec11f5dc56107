"""Examples of transformers of your own."""
