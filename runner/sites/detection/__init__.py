"""Site detection: ask a live cluster within a time limit, read its answers (pure), and write a site file."""
