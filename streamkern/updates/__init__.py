"""Updates of fitted models: adding and removing rows."""
