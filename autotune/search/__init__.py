"""Deciding what to measure and what the measurements say. Values in, values out: no clock, no disk, no database."""
