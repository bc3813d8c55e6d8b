"""Estimators with the conventions of scikit-learn."""
