"""What every member's process needs, imported once in the process that they are forked from."""

import transformers.models.auto.modeling_auto  # noqa: F401

import monet.api.functions  # noqa: F401
from zoo.timm_members import timm

timm()
