"""Checks for samplers, a catalogue of their mistakes, and hypothesis strategies for their inputs.

`import cactus_theory` does not import this package. The strategies need hypothesis, an extra; the
checks and the catalogue do not. The public names are those of the stub file.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
