"""What the decoder knows of transformers models: loading, caches, devices, quantised copies."""
