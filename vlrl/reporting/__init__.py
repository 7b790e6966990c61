"""The report of runs: read a run directory, choose what fits, draw one HTML file or PNG plots."""
