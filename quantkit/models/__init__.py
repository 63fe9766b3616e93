"""The one decoder, as pure functions over named weights."""
