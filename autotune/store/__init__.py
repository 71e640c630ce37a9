"""The store: our tables beside Optuna's in one database. Imports nothing of ours but values."""
