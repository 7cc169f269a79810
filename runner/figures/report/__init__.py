"""A report on a study or on runs: facts out of run directories, then one page, a picture, and tables."""
