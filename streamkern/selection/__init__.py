"""The choice of a kernel, its bandwidth, its metric and its ridge by the data."""
