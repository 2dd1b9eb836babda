"""Programs that measure the figures of the pages. ``python -m benchmarks`` prints their names; README.md lists them."""
