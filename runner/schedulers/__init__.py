"""Schedulers: a pure render from plan and step to a batch script, and thin edges to the scheduler's clients."""
