"""RoBERTa: BERT's encoder under another name, with its own heads."""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.bert import describe_encoder
from normgauge.anatomy.post_norm_encoder import Head, MaskedHead
from normgauge.anatomy.structure import Anatomy

MASKED = MaskedHead(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias", activation="gelu"
)
CLASSES = {
    "RobertaModel": Head("", pooler=True),
    "RobertaForMaskedLM": Head("roberta", masked=MASKED),
    "RobertaForSequenceClassification": Head(
        "roberta", dense="classifier.dense", label="classifier.out_proj"
    ),
    "RobertaForMultipleChoice": Head("roberta", pooler=True, label="classifier", label_size=1),
    "RobertaForTokenClassification": Head("roberta", label="classifier"),
    "RobertaForQuestionAnswering": Head("roberta", label="qa_outputs"),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a RoBERTa config. Raises InputError on decoder use, cross-attention or an
    unknown class.
    """
    return describe_encoder(config, CLASSES)
