"""From a Dockerfile to a multi-node throughput figure that can be believed."""

__version__ = "0.1.0"
