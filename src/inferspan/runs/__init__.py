"""Figures across recordings: the ranks of a job side by side, the runs of a program in a row. No torch, no OpenTelemetry."""
