"""Where settings come from, beside arguments and the environment: a YAML file, and presets."""
