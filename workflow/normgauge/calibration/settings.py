"""How the calibration of a model is cut: the settings that a study chooses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Bos(StrEnum):
    """What begins every sequence of a decoder-only model."""

    NEVER = "never"
    """Nothing: bare windows of the text."""
    TOKENIZER = "tokenizer"
    """What the model's own tokenizer puts there when it is called: nothing for GPT-2, Pythia,
    Qwen2; a token for Llama-2, Gemma.
    """
    ALWAYS = "always"
    """The same, and where that is nothing the config's bos_token_id."""


@dataclass(frozen=True)
class Settings:
    """How much of a corpus enters a model, which part of it, and behind what.

    sequences: of `length` tokens each. seed: of the choice of windows and of generated inputs. bos:
        see `Bos`.
    """

    sequences: int = 32
    length: int = 256
    seed: int = 0
    bos: Bos = Bos.NEVER


DEFAULT = Settings()
