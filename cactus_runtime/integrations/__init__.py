"""The decoder behind other packages' interfaces; each module needs the package in its name."""
