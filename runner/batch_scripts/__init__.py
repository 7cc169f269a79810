"""Batch scripts of others, read without running them: what they ask for, what is wrong with them, and our command."""
