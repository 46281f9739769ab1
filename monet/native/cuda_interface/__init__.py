"""What c10's headers name of the CUDA runtime, declared: PyTorch's wheels do not bring all of its own headers."""
