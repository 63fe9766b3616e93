"""Calibration: texts to token windows, statistics, and the methods that use them."""
