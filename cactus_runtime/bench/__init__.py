"""Measured ratios: decoding against its bound and against transformers, verification from logits.

``python -m cactus_runtime.bench --help``
"""
