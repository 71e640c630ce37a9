"""The dashboard and the report: pages of what was measured. Reads the store, never writes it, asks no other host."""
