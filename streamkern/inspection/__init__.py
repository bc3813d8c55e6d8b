"""Looking at data: columns, distributions, the order of rows."""
