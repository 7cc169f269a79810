"""Rules over a plan and what was observed: pure, each finding with a code, the fix, and who can fix it."""
