"""Measurements that need a checkout: what rules do to answers, and speeds of the theory."""
