"""The decoding loop: rows of a batch, their drafts, and the blocks that advance them."""
