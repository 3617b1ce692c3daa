"""What a decoding returns, and how it is shown: on a terminal, as a page, as a curve."""
