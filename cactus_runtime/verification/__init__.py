"""Verification: from logits and drafted tokens to a judgement. Knows neither rows nor models."""
