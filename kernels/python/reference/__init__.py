"""Plain torch; always there, and the oracle for every other kernel."""
