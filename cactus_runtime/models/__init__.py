"""Everything specific to transformers models: loading, caches, devices, quantised copies."""
