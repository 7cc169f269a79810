"""Studies: many runs with one question. Planned once, resumed as often as needed, gathered from the runs' verdicts."""
