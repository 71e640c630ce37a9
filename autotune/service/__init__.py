"""Nightly schedules: when they run, what a night does, what is said about it, and the service that sees to all of it."""
