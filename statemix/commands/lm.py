"""`statemix lm`: language models, from text to a trained model and its evaluation."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from statemix.commands.lm_eval import LMEval
from statemix.commands.lm_export import Export
from statemix.commands.lm_generate import Generate
from statemix.commands.lm_ngram import NGram
from statemix.commands.lm_prepare import Prepare
from statemix.commands.lm_presets import LMInfo, Presets
from statemix.commands.lm_train import LMTrain

__all__ = ["LM"]

_Command = (
    Annotated[Presets, tyro.conf.subcommand("presets")]
    | Annotated[LMInfo, tyro.conf.subcommand("info")]
    | Annotated[Prepare, tyro.conf.subcommand("prepare")]
    | Annotated[LMTrain, tyro.conf.subcommand("train")]
    | Annotated[NGram, tyro.conf.subcommand("ngram")]
    | Annotated[Generate, tyro.conf.subcommand("generate")]
    | Annotated[LMEval, tyro.conf.subcommand("eval")]
    | Annotated[Export, tyro.conf.subcommand("export")]
)


@dataclass(frozen=True)
class LM:
    """Language models: prepare text, train, generate, evaluate, export to Hugging Face."""

    command: Annotated[tyro.conf.OmitSubcommandPrefixes[_Command], tyro.conf.arg(name="")]

    def run(self) -> None:
        self.command.run()
