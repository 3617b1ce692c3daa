"""Our decoder behind the interfaces of others; each module needs the package it is named after."""
