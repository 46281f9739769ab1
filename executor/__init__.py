"""The arena, generated code, the module that runs a plan, and meters."""
