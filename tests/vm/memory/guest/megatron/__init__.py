"""Stands where ms-swift has its Megatron trainer: stacks show these files and functions during a save."""
