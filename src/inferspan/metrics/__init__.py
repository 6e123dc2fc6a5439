"""Request metrics, instruments of device readings, and totals."""
