"""Studies: grids as data, the runner, the report."""
