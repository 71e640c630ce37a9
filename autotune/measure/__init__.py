"""Runners: whatever turns a Point into a Measurement or a Failure. They never touch the store."""
