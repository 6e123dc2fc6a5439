"""Pipelines of diffusers as requests: text encoding, denoising step by step, and decoding, as stages of one request."""
