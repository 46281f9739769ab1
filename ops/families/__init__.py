"""Records of operators, a file a family; ``monet.ops.registry`` lists them."""
