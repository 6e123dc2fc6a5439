"""The decoding loop of transformers: wrappers around it, its steps, tokens and end."""
