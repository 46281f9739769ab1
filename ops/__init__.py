"""Operator implementations by family, their registry, and how they are measured."""
