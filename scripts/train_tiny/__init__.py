"""Training of the tiny pair from WordNet's glosses: ``python -m scripts.train_tiny --help``."""
