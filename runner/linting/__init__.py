"""Reads a training script, without running it, and says what it lacks to train on several GPUs."""
