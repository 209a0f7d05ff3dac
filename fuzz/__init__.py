"""Fuzzing of everything that a file made by somebody else reaches. See README.md in this folder."""
