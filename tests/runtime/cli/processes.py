"""The command in a process of its own."""

from __future__ import annotations

import subprocess
import sys

START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may start ignored
class Missing:  # not None in sys.modules, which scipy takes for a module
    def find_spec(name, path=None, target=None):
        if name in {blocked!r}: raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing)
from cactus_runtime.cli import main
status = main({arguments!r})
unwanted = {unwanted!r} & set(sys.modules)
assert not unwanted, unwanted
sys.exit(status)
"""
MODELS = ("torch", "transformers")  # ordered, or each process would name its tests otherwise
EVERYTHING = (*MODELS, "sympy", "flint", "matplotlib")
DECODE = ["--pair", "tiny", "--seed", "3", "--tokens", "20", "--delta", "0.1", "--drafts", "2"]
WARM = ["--temperature", "0.7"]


def start(arguments, *, blocked=(), unwanted=(), **options) -> subprocess.Popen:
    code = START.format(
        blocked=list(blocked), arguments=list(arguments), unwanted=set(unwanted) - set(blocked)
    )
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, **options
    )


def call(arguments, **options) -> tuple[int, str, str]:
    process = start(arguments, **options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(), err.decode()
