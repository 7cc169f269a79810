"""Environments for programs that run without a container: made, proven, found again."""
