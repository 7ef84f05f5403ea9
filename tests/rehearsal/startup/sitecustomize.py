"""`import torch` brings the rehearsed GPUs along in each Python process that `rehearse.py` starts.

torch asks once which GPUs there are, while it is imported: what plays them is loaded before.
"""

import ctypes
import importlib.machinery
import importlib.util
import os
import sys


class _BeforeTorch:
    """Finds torch, once, with a loader that brings the rehearsal along."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(_BeforeTorch)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module

        def execute_and_install(module):
            ctypes.CDLL(os.environ["REHEARSED_CUDA"], ctypes.RTLD_GLOBAL)
            execute(module)
            source = os.path.join(os.path.dirname(_HERE), "python_half.py")
            half = importlib.util.spec_from_file_location("rehearsed_python_half", source)
            python_half = importlib.util.module_from_spec(half)
            half.loader.exec_module(python_half)

        spec.loader.exec_module = execute_and_install
        return spec


_HERE = os.path.dirname(os.path.abspath(__file__))
sys.meta_path.insert(0, _BeforeTorch)
if "REHEARSED_TORCH_NAMES" in os.environ:
    _source = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "support", "older_torch.py")
    _spec = importlib.util.spec_from_file_location("rehearsed_older_torch", _source)
    _older_torch = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_older_torch)
    sys.meta_path.insert(0, _older_torch.Finder(os.environ["REHEARSED_TORCH_NAMES"]))

# The sitecustomize that would have run without this one, that of a diagnosis for instance.
sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
_next = importlib.machinery.PathFinder.find_spec("sitecustomize")
if _next is not None:
    _module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(_next)
    _next.loader.exec_module(_module)
