"""What is read of a model once, when it is instrumented: the cost of its modules, and how positions go through them.

In: a module. Out: :class:`~inferspan.roofline.model.ModelCosts`. Only shapes, dtypes, storage and the configuration are read, no values,
and nothing waits for the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from inferspan.guard import ask, has_attribute, read_attribute

from .costs import Cost, cost_of, features_of, is_registered, weight_of
from .model import CROSS, ENCODER, FRAMES, HEAD, MAIN, OTHER, PATCHES, ROWS, ModelCosts, ModulePart
from .peaks import Peaks
from .products import computes_products

__all__ = ["gather"]

_QUERIES = ("q_proj", "query", "q", "q_lin", "query_proj", "q_attn")
_KEYS = ("k_proj", "key", "k", "k_lin", "key_proj")
_VALUES = ("v_proj", "value", "v", "v_lin", "value_proj")
_FUSED = ("c_attn", "qkv_proj", "qkv", "query_key_value", "Wqkv", "W_pack")
_PROJECTIONS = (*_QUERIES, *_FUSED)
_OUTPUTS = ("o_proj", "out_proj", "o", "out_lin", "c_proj", "dense", "proj")
_CROSS = ("cross", "encoder_attn", "encdec")
_ROWS = ("pooler", "classifier", "pre_classifier")
"""Names of modules that see one position of each row, where the class of the model says that it classifies rows."""
_OTHERWISE = frozenset({
    "albert", "canine", "diffllama", "doge", "esm", "funnel", "higgs_audio_v2", "hrm_text", "llama4", "llama4_text", "longformer", "led",
    "longt5", "markuplm", "mra", "nystromformer", "pegasus_x", "reformer", "switch_transformers", "visual_bert", "xlm", "flaubert",
})  # fmt: skip
"""Types of models in which a position goes through a module several times or never, or whose attention takes other products."""
_POOLED = frozenset({"eurobert", "modernbert-decoder"})
"""Types of models that classify rows, some layers of whose head see each position."""
_PATCHES = frozenset({
    "beit", "clip_vision_model", "data2vec-vision", "deit", "dinov2", "dinov2_with_registers", "ijepa", "vit", "vit_msn",
})  # fmt: skip
"""Types of models each of whose layers sees all patches of an image, and the tokens before them."""
_RECURRENT = frozenset({"A_log", "dt_bias"})
"""Parameters of layers with a state, which may have the projections of attention."""
_UNLIKE = ("lightning", "linearattention", "local", "sparse", "delta", "retention")
"""Words in names of classes whose attention takes other products than queries with all keys."""


class _Found(NamedTuple):
    """A module with its path and those above it."""

    path: str
    module: Any
    above: tuple[Any, ...]


def _walk(root: Any) -> Iterator[_Found]:
    """Modules in order, each object once; not what is inside those whose cost covers it."""
    seen = {id(root)}
    pending: list[_Found] = [_Found("", root, ())]
    while pending:
        found = pending.pop()
        yield found
        if is_registered(found.module):
            continue
        children = []
        for name, child in found.module._modules.items():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                children.append(_Found(f"{found.path}.{name}" if found.path else name, child, (*found.above, found.module)))
        pending.extend(reversed(children))


def _child(module: Any, names: tuple[str, ...]) -> tuple[int, int] | None:
    for name in names:
        child = module._modules.get(name)
        if child is not None and (features := features_of(child)) is not None:
            return features
    return None


def _attention(module: Any, above: tuple[Any, ...]) -> tuple[int, int] | None:
    """Width of the queries, and elements of keys and values of a position, of a module that computes attention; ``None`` for others."""
    if not any(name in module._modules for name in _PROJECTIONS):
        return None
    output = _child(module, _OUTPUTS)
    if output is None and above:  # BERT has it in a module of its own
        output = next((found for child in above[-1]._modules.values() if child is not None and (found := _child(child, _OUTPUTS))), None)
    queries, keys, values = (_child(module, names) for names in (_QUERIES, _KEYS, _VALUES))
    if queries is not None and keys is not None and values is not None:
        return (output[0] if output is not None and queries[1] % output[0] == 0 else queries[1]), keys[1] + values[1]
    fused = _child(module, _FUSED)
    if fused is None or output is None:
        return None
    if queries is not None:  # GPT-2: the fused ones are keys and values
        return queries[1], fused[1]
    return output[0], fused[1] - output[0]


def _looks_like_attention(module: Any) -> bool:
    return "attention" in type(module).__name__.lower() and any(
        child is not None and features_of(child) is not None for child in module._modules.values()
    )


def _is_open(module: Any, cost: Cost, attends: bool) -> bool:
    """Whether a module computes something that its cost does not tell of.

    Args:
        module: any.
        cost: from its parameters.
        attends: whether it has the projections of attention.
    """
    if "base_layer" in module._modules and "lora_A" in module._modules:
        # Two products beside that of the layer, unless the adapter is merged, switched off, or one of several.
        plain = not read_attribute(module, "merged", True) and not read_attribute(module, "disable_adapters", True)
        return not plain or len(module._modules["lora_A"]) != 1 or bool(module._modules.get("lora_magnitude_vector"))
    if attends:
        # Layers with a state have such projections as well.
        words = type(module).__name__.lower()
        return not _RECURRENT.isdisjoint(module._parameters) or any(word in words for word in _UNLIKE)
    return _looks_like_attention(module) or (not cost.flops and computes_products(module))


def _window(module: Any) -> int:
    config = read_attribute(module, "config")
    window = read_attribute(module, "sliding_window", read_attribute(config, "sliding_window"))
    types, place = read_attribute(config, "layer_types"), read_attribute(module, "layer_idx")
    if isinstance(types, list | tuple) and isinstance(place, int) and place < len(types) and "sliding" not in str(types[place]):
        return 0
    return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else 0


class _Streams:
    """Which positions go through which module, from the configuration and the names of modules."""

    def __init__(self, root: Any, found: list[_Found]) -> None:
        self.config = read_attribute(root, "config")
        self.name = type(root).__name__
        self.paths = {id(one.module): one.path for one in found}
        self.encoder = self._encoder(root)
        self.language = self._language(root)
        embeddings = ask(root, "get_output_embeddings")
        self.head = self.paths.get(id(embeddings)) if embeddings is not None else None
        # The weight of a module with packed int8 weights is a method, that of one with a parametrization is computed.
        weight = weight_of(embeddings) if self.head is not None else None
        shape = getattr(weight, "shape", None) or (getattr(embeddings, "out_features", 0),)
        self.vocabulary = int(shape[0]) if self.head is not None else 0
        prefix = read_attribute(root, "base_model_prefix")
        beside = isinstance(prefix, str) and prefix in root._modules and self.head is not None and not _below(self.head, prefix)
        self.base = prefix if beside else None
        self.kind = self._kind(root)

    def _encoder(self, root: Any) -> str | None:
        if not read_attribute(self.config, "is_encoder_decoder", False):
            return None
        encoder = ask(root, "get_encoder")
        return self.paths.get(id(encoder)) if encoder is not None else None

    def _language(self, root: Any) -> str | None:
        """Path of the language model of one that takes more than text."""
        if not any(has_attribute(self.config, name) for name in ("vision_config", "audio_config")):
            return None
        decoder = ask(root, "get_decoder")
        return None if decoder is None else self.paths.get(id(decoder))

    def _kind(self, root: Any) -> str:
        if self.config is None or not has_attribute(root, "get_input_embeddings"):
            return ""
        kind = read_attribute(self.config, "model_type")
        if kind in _OTHERWISE or (kind in _POOLED and self.name.endswith("ForSequenceClassification")):
            return ""
        if read_attribute(self.config, "is_encoder_decoder", False):
            return "encoder-decoder" if self.encoder else ""
        if read_attribute(root, "main_input_name") == "pixel_values":
            return "vision" if kind in _PATCHES and self.vocabulary == 0 else ""
        if has_attribute(self.config, "vision_config") or has_attribute(self.config, "audio_config"):
            return "decoder" if self.language is not None and self.head is not None else ""
        if read_attribute(root, "main_input_name") != "input_ids":
            return ""
        return "decoder" if ask(root, "can_generate") else "encoder"

    def of(self, path: str, module: Any) -> str:
        """The stream of a module."""
        parts = path.split(".")
        # A head of several layers has the first of them beside the base model as well.
        beside = self.base is not None and self.kind == "decoder" and self.language is None and path and parts[0] != self.base
        if self.head is not None and (path == self.head or beside):
            return HEAD
        if self.encoder and _below(path, self.encoder):
            return FRAMES if type(module).__name__ == "Conv1d" else ENCODER
        if self.language is not None and not _below(path, self.language):
            return OTHER
        if self.kind == "vision" and type(module).__name__ == "Conv2d":
            return PATCHES
        if "pooler" in parts or "sequence_summary" in parts:
            return ROWS
        if parts[0] in _ROWS and self.name.endswith(("ForSequenceClassification", "ForImageClassification")):
            return ROWS
        if _is_cross(parts) and parts[-1] in (*_KEYS, *_VALUES, "c_attn"):
            return CROSS
        return MAIN


def _below(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}.")


def _is_cross(parts: list[str]) -> bool:
    return any(word in part.lower() for part in parts for word in _CROSS)


def _experts(cost: Cost, above: tuple[Any, ...], config: Any) -> Cost:
    """The cost of experts with how many of them a position goes through."""
    for place in (*reversed(above), config):
        for name in ("top_k", "num_experts_per_tok", "moe_k"):
            chosen = read_attribute(place, name)
            if isinstance(chosen, int) and not isinstance(chosen, bool) and chosen > 0:
                return cost._replace(chosen=chosen)
    return cost


def _separate_experts(found: list[_Found], config: Any) -> tuple[set[str], list[tuple[str, Cost]]]:
    """Experts that are modules of their own, in a list: paths of lists, and for each the cost of all of them together."""
    lists, costs = set[str](), []
    for path, module, above in found:
        if path.rpartition(".")[2] != "experts" or type(module).__name__ != "ModuleList" or not len(module):
            continue
        one = [cost_of(part) for part in module[0].modules()]
        if any(cost is None for cost in one):
            continue
        known = [cost for cost in one if cost is not None]
        each = Cost(
            flops=sum(cost.flops for cost in known), weights=len(module) * sum(cost.weights for cost in known),
            moved=sum(cost.moved for cost in known), experts=len(module),
        )  # fmt: skip
        lists.add(path)
        costs.append((path, _experts(each, above, config)))
    return lists, costs


def _is_sharded(root: Any) -> bool:
    """Whether parameters are parts of larger ones, so that one device does not do all of the work."""
    return any(hasattr(parameter, "placements") or type(parameter).__name__ == "FlatParameter" for parameter in root.parameters())


def _scales(parts: list[ModulePart], strides: dict[str, int]) -> list[ModulePart]:
    """Convolutions in front of an encoder, with how many points each has for a position: the strides of those behind it."""
    scale, scaled = 1, []
    for part in reversed(parts):
        if part.stream == FRAMES:
            part, scale = part._replace(scale=scale), scale * strides.get(part.path, 1)
        scaled.append(part)
    return scaled[::-1]


def gather(root: Any, *, element: int, peaks: Peaks | None, asynchronous: bool) -> ModelCosts | None:
    """Read what passes of a model cost.

    Args:
        root: the model, out of its wrappers.
        element: bytes of an element of its activations.
        peaks: ceilings of its device, if known.
        asynchronous: whether the device works while the host goes on.

    Returns:
        The costs, or ``None`` for a model that several devices compute together, and for one whose weights have no shape yet.
    """
    if _is_sharded(root) or any(type(parameter).__name__ == "UninitializedParameter" for parameter in root.parameters()):
        return None
    found = list(_walk(root))
    streams = _Streams(root, found)
    parts, unknown, strides = list[ModulePart](), list[str](), dict[str, int]()
    lists, separate = _separate_experts(found, streams.config)
    parts += [ModulePart(path, cost, streams.of(path, None)) for path, cost in separate]
    for path, module, above in found:
        if any(_below(path, one) for one in lists):
            continue
        cost = cost_of(module)
        heads = None if is_registered(module) else _attention(module, above)
        if cost is None or (not is_registered(module) and _is_open(module, cost, heads is not None)):
            unknown.append(path)
            continue
        if heads is not None:
            cost = cost._replace(attention=heads[0], keys=heads[1], window=_window(module))
        if cost.experts and not cost.chosen:
            cost = _experts(cost, above, streams.config)
        if cost == Cost():
            continue
        stream = streams.of(path, module)
        if stream == FRAMES:
            strides[path] = int(module.stride[0])
        cross = bool(heads) and stream not in (ENCODER, FRAMES) and _is_cross(path.split("."))
        parts.append(ModulePart(path, cost, stream, cross=cross))
    config = streams.config
    patch = read_attribute(config, "patch_size") if streams.kind == "vision" else None
    return ModelCosts(
        parts=tuple(_scales(parts, strides)),
        unknown=tuple(unknown),
        element=element,
        kind=streams.kind,
        head=1 if streams.head is not None and _keeps_logits(root) else None,
        vocabulary=streams.vocabulary,
        patch=() if patch is None else tuple(patch) if isinstance(patch, tuple | list) else (patch, patch),
        extra=_extra(found) if streams.kind == "vision" else 0,
        source=read_attribute(config, "max_source_positions") if any(part.stream == FRAMES for part in parts) else None,
        peaks=peaks,
        asynchronous=asynchronous,
    )


def _keeps_logits(root: Any) -> bool:
    """Whether ``generate()`` asks a model for the logits of the last position alone."""
    return "logits_to_keep" in inspect.signature(type(root).forward).parameters


def _extra(found: list[_Found]) -> int:
    """Positions that a vision model puts before the patches: tokens that it has learned."""
    names = ("cls_token", "distillation_token", "register_tokens")
    tensors = [module._parameters.get(name) for _, module, _ in found for name in names]
    whole = [module._parameters.get("class_embedding") for _, module, _ in found]  # CLIP has it as a vector
    extra = sum(int(tensor.shape[1]) for tensor in tensors if tensor is not None and tensor.dim() == 3)
    return extra + len([tensor for tensor in whole if tensor is not None and tensor.dim() == 1])
