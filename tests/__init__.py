"""The test suite; its folders follow those of the package."""
