"""A session -> the figures that the page, the JSON report and the terminal show alike."""
