"""Kernel sets: the operations of a model on one kind of processor, and the seam that they share."""
