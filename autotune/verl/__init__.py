"""All knowledge of verl: knobs, key names by release, rules, metrics, logs, failures, short-run settings."""
