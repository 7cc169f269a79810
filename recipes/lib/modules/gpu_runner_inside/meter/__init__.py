"""The meter: a training script that is not ours, measured and proven as the benchmarks are (runner_meter.py)."""
