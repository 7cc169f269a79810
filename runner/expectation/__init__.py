"""What a run should reach: a cost model of data-parallel training. Pure functions, and parameters.yaml."""
