"""Making drafters for a target: its own text, its features and probabilities, training, and what was measured."""
