"""Measuring training throughput, and proving that the ranks trained together."""
