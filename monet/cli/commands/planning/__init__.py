"""What ``monet plan`` was asked for, and who answers it: of a model, of a measured step, or of published costs."""
