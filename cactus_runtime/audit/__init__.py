"""Transcripts of other samplers: reading, asking a server for them, and judging them."""
