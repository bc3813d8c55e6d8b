"""Steps that are fitted to the training rows, and the choice of them by the kinds of columns."""
