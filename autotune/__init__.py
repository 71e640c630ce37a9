"""autotune: an automated throughput tuner for verl."""

__version__ = "0.1.0"
