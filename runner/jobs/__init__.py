"""Jobs: the run directory, submission, watching, and the verdict."""
