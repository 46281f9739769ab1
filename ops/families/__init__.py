"""Records of operators, a file or folder a family; ``monet.ops.registry`` lists them."""
