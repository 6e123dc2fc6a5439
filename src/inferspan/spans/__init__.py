"""Requests and their detail as spans."""
