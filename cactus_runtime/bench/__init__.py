"""Measured ratios: decoding against its bound and against transformers, verification from logits.

``cactus bench --help``
"""
