"""Small scripts that build and check the book. None of them is part of the package."""
