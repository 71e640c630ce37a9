"""The study: ask, gate, measure, tell, confirm, verdict. The only writer of the store."""
