"""Text work on generated tokens: no tensors, outside the step loop."""
