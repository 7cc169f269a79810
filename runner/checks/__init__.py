"""Rules over a plan and what was observed: pure, each finding with a code, the mend, and who can mend it."""
