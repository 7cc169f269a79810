"""Proven figures against each other, and against references: ``compare``."""
