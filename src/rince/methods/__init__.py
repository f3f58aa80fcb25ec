"""Methods: how the views of a step become gradients, each in a small file that says what it has and wants."""
