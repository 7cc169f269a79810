"""Recipes: what jobs run."""
