"""Configurations shipped with monet; ``monet-plan resnet50.yaml`` finds them by bare name."""
