"""The commands of ``monet``, one a module. They import torch only once there is work for it."""
