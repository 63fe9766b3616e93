"""The nouns: what travels between calibration, files and the runtime."""
