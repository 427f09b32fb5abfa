"""tx_from_scratch: the Transformer, taken apart.

Every part built from scratch in PyTorch, one small module for each idea. See the book for the story.
"""

__version__ = "0.1.0"
