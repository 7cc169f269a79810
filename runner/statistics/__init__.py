"""Statistics of timed runs: the one place that turns records into figures. Pure, standard library only.

Units and shapes, everywhere: *group times* are seconds that one group of steps took, in order, all above 0; results
that are shares are fractions (0.01 is 1 %). Every verdict has a third value: "cannot tell" and None are results.

The rules and their error rates: docs/measurement.md; ``make bench-statistics`` prints all error rates.
"""
