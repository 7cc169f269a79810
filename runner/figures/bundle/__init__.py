"""Proof-carrying figures: runs with all that their figures are made from, in one file, and its verification."""
