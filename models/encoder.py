"""A transformer encoder in BERT's layout, pooled, with a linear classifier: from random weights, or a pretrained file.

Sources: Vaswani et al., Attention Is All You Need, 2017, section 3; Devlin et al., BERT, 2019, section 3, and its code
for the names of weights. A document is one sequence, that of its sentences one after the other; tokens beyond the last
position are not read. Every token has type 0. The file's pooler and its heads of pretraining are not used.

Shape legend: N documents, S sentences per document, W tokens per sentence, L = S x W, E width, H heads, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.densenet_imagenet import WeightsSettings
from models.layers.sequences import real_steps
from reread.kinds.text import token_ids
from reread.storage.errors import InputError
from reread.storage.files import sha256_file
from reread.storage.settings import Range

KIND = "text"
EPSILON = 1e-12
DEVIATION = 0.02
TYPES = 2
WORDS = "embeddings.word_embeddings.weight"
# Of a file: what follows the encoder, and a list of numbers.
NOT_USED = ("pooler.", "cls.", "classifier.", "embeddings.position_ids")


@dataclass(frozen=True)
class Settings:
    """layers, width, heads, feed_forward: sizes; positions: the most tokens of a document; dropout: of embeddings,
    attention and each layer; pooling: the mean over tokens, or the first one; initial_weights: a .safetensors file with
    BERT's names, None for random ones."""

    layers: Annotated[int, Range(1, 128)] = 2
    width: Annotated[int, Range(1, 16384)] = 128
    heads: Annotated[int, Range(1, 256)] = 2
    feed_forward: Annotated[int, Range(1, 65536)] = 512
    positions: Annotated[int, Range(1, 65536)] = 512
    dropout: Annotated[float, Range(0, 0.95)] = 0.1
    pooling: Literal["mean", "first"] = "mean"
    initial_weights: WeightsSettings | None = None

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InputError(f"width is {self.width}: it must be a multiple of heads, which is {self.heads}")


DEBUG = Settings(layers=1, width=8, heads=2, feed_forward=16)
SIZES: Mapping[str, Mapping[str, Any]] = {
    name: {"layers": layers, "width": width, "heads": heads, "feed_forward": 4 * width}
    for name, layers, width, heads in (
        ("bert-tiny", 2, 128, 2),
        ("bert-mini", 4, 256, 4),
        ("minilm-l6", 6, 384, 12),
        ("minilm-l12", 12, 384, 12),
        ("bert-base", 12, 768, 12),
        ("bert-large", 24, 1024, 16),
    )
}


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each with its input added and normalised. Names are those of BERT."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.heads, self.dropout = settings.heads, settings.dropout
        projections = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
        self.attention: Any = nn.ModuleDict({"self": projections, "output": _output(width, width)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, settings.feed_forward)})
        self.output = _output(settings.feed_forward, width)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """x float [N, L, E], real bool [N, 1, 1, L], which tokens are read -> float [N, L, E]."""
        dropout = self.dropout if self.training else 0.0
        query, key, value = (
            projection(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projection in self.attention["self"].values()
        )
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=real, dropout_p=dropout)
        x = self._add(self.attention["output"], x, read.transpose(1, 2).flatten(2))
        return self._add(self.output, x, functional.gelu(self.intermediate["dense"](x)))

    def _add(self, output: nn.ModuleDict, x: Tensor, change: Tensor) -> Tensor:
        return output["LayerNorm"](x + functional.dropout(output["dense"](change), self.dropout, self.training))


def _output(inputs: int, width: int) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(inputs, width), "LayerNorm": nn.LayerNorm(width, EPSILON)})


class Encoder(nn.Module):
    token_ids: Tensor

    def __init__(self, settings: Settings, ids: list[int], classes: int) -> None:
        """ids: by the number of a token its row of the word embeddings."""
        super().__init__()
        self.pooling, self.dropout, self.positions = settings.pooling, settings.dropout, settings.positions
        self.embeddings: Any = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(max(ids) + 1, settings.width),
                "position_embeddings": nn.Embedding(settings.positions, settings.width),
                "token_type_embeddings": nn.Embedding(TYPES, settings.width),
                "LayerNorm": nn.LayerNorm(settings.width, EPSILON),
            }
        )
        self.encoder: Any = nn.ModuleDict({"layer": nn.ModuleList(Layer(settings) for _ in range(settings.layers))})
        self.classifier = nn.Linear(settings.width, classes)
        self.register_buffer("token_ids", torch.tensor(ids), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=DEVIATION)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> Tensor:
        """tokens int [N, S, W], word_counts int [N, S], sentence_counts int [N] (not used) -> logits float [N, K]."""
        real = real_steps(word_counts, tokens.shape[2]).flatten(1)
        places = real.long().cumsum(1) - 1
        real = real & (places < self.positions)
        words = self.embeddings["word_embeddings"](self.token_ids[tokens.flatten(1).long()])
        places = self.embeddings["position_embeddings"](places.clamp(0, self.positions - 1))
        x = words + places + self.embeddings["token_type_embeddings"].weight[0]
        x = functional.dropout(self.embeddings["LayerNorm"](x), self.dropout, self.training)
        for layer in self.encoder["layer"]:
            x = layer(x, real[:, None, None])
        if self.pooling == "first":
            document = x[:, 0]
        else:
            document = (x * real.unsqueeze(2)).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)
        return self.classifier(functional.dropout(document, self.dropout, self.training))


def build(settings: Settings, description: dict[str, Any]) -> Encoder:
    """Build the network for a prepared text data set (``description`` is its prepared.json)."""
    about = description.get("tokenizer")
    if settings.initial_weights is not None and about is None:
        raise InputError(
            f"initial_weights needs the tokenizer of its weights: set preprocessing.{description['name']}.tokenizer"
        )
    ids = token_ids(about) if about else list(range(description["vocabulary_size"]))
    return Encoder(settings, ids, len(description["classes"]))


def load_initial_weights(network: Encoder, settings: Settings) -> None:
    """Copy the weights of ``settings.initial_weights`` into a new network, all but the classifier; with None it keeps
    its random ones.

    InputError for a file that is missing, is not the one of the digest, or does not fit. Rows of word embeddings beyond
    the tokenizer's last id are left out.
    """
    given = settings.initial_weights
    if given is None or not given.path:
        return
    from safetensors.torch import load_file

    path = Path(given.path)
    if not path.is_file():
        raise InputError(f"initial_weights: {path} is missing: give the path of a model.safetensors")
    if sha256_file(path) != given.sha256:
        raise InputError(f"initial_weights: {path} has another sha256 than the setting ({given.sha256[:12]}…)")
    state = {_name(name): value.float() for name, value in load_file(path).items()}
    state = {name: value for name, value in state.items() if not name.startswith(NOT_USED)}
    own = {name: value for name, value in network.state_dict().items() if not name.startswith("classifier.")}
    if WORDS in state:
        state[WORDS] = state[WORDS][: len(own[WORDS])]
    for name, value in own.items():
        if name not in state or state[name].shape != value.shape:
            has = f"shape {list(state[name].shape)}" if name in state else "no such weight"
            raise InputError(
                f"initial_weights: {path} does not fit: {name} is {list(value.shape)}, and the file has {has}: set the "
                "network's size to that of the file"
            )
    if unknown := sorted(set(state) - set(own)):
        raise InputError(f"initial_weights: {path} does not fit: this network has no {unknown[0]}")
    network.load_state_dict(state, strict=False)


def _name(name: str) -> str:
    """Return the name of a weight as an encoder by itself has it; the first files called a norm's weight gamma."""
    plain = name.removeprefix("bert.")
    return plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
